"""Self-test of the guards: a process attacks itself through FLARE's entry points before it connects or registers.

FLARE catches exceptions of most callbacks, so a guard that is not effective is noticed only by an attack. Every
function first sends a harmless message that must arrive, so that the test cannot pass on a process that receives
nothing.
"""

from __future__ import annotations

import io
import json
from typing import Any
from zipfile import ZipFile

from fco_cli.federation.flare.adapter import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    AdminMessage,
    CellChannel,
    ClientRequestProcessors,
    Endpoint,
    FedAdminAgent,
    Message,
    MessageHeaderKey,
    MessageType,
    StreamHeaderKey,
    SysCommandTopic,
    TrainingTopic,
    new_cell_message,
    requests_received_by,
)
from fco_cli.federation.flare.guards import SERVER, member
from fco_cli.federation.flare.jobs import ALLOWED_TOPICS, CONFIG
from fco_cli.federation.flare.rights import CHANNEL, READY, SITE_JOB

OTHER_SITE, THIRD_SITE = "another-site", "third-site"
UNKNOWN = "fco-self-test"  # channel and topic off every list


class Probe:
    """Receiver of all requests that a cell accepts."""

    def __init__(self, cell: Any) -> None:
        self.cell, self.arrived = cell, 0

    def count(self, message: Any) -> None:
        self.arrived += 1

    def arrives(self, peer: str, origin: str, channel: str = CHANNEL, topic: str = READY, **headers: str) -> bool:
        """Return True if the cell accepts a request that it receives from `peer`."""
        request = Message(
            {
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.ORIGIN: origin,
                MessageHeaderKey.DESTINATION: self.cell.get_fqcn(),
                MessageHeaderKey.CHANNEL: channel,
                MessageHeaderKey.TOPIC: topic,
                **headers,
            }
        )
        before = self.arrived
        with requests_received_by(self.cell, self.count):
            self.cell.process_message(Endpoint(peer), None, self.cell.APP_ID, request)
        return self.arrived > before


def attack_site(cell: Any) -> None:
    """Raise RuntimeError unless a site's cell refuses forged senders and requests that no run needs."""
    probe, me = Probe(cell), member(cell.get_fqcn())
    _require(probe.arrives(SERVER, SERVER), "a request of the server does not arrive")
    streamed = {StreamHeaderKey.CHANNEL: UNKNOWN, StreamHeaderKey.TOPIC: UNKNOWN}
    for attack, arrives in {
        "a message of another site": probe.arrives(OTHER_SITE, OTHER_SITE),
        "a message of another site in the server's name": probe.arrives(OTHER_SITE, SERVER),
        "a message of the server in this site's name": probe.arrives(SERVER, me),
        "a forwarded message of another site": probe.arrives(SERVER, OTHER_SITE),
        "a channel off the list": probe.arrives(SERVER, SERVER, UNKNOWN, UNKNOWN),
        "a topic off the list": probe.arrives(SERVER, SERVER, CHANNEL, UNKNOWN),
        "a command off the list": probe.arrives(SERVER, SERVER, CellChannel.CLIENT_COMMAND, UNKNOWN),
        "a bundle of messages": probe.arrives(SERVER, SERVER, CellChannel.CELLNET, "bulk"),
        "a stream off the list": probe.arrives(SERVER, SERVER, STREAM_CHANNEL, STREAM_DATA_TOPIC, **streamed),
    }.items():
        _require(not arrives, f"{attack} is accepted")


def attack_server(cell: Any, peers: dict[str, Any], accepted: Any) -> None:
    """Raise RuntimeError unless the server's cell refuses parties without a certificate and forged senders.

    `peers` are the parties whose certificates the guard has accepted.
    """
    probe = Probe(cell)
    _require(not probe.arrives(OTHER_SITE, OTHER_SITE), "a message of a party without a certificate is accepted")
    peers[OTHER_SITE] = accepted
    try:
        _require(probe.arrives(OTHER_SITE, OTHER_SITE), "a request of a site does not arrive")
        _require(not probe.arrives(OTHER_SITE, SERVER), "a message of a site in the server's name is accepted")
        _require(not probe.arrives(OTHER_SITE, THIRD_SITE), "a message of a site in another's name is accepted")
    finally:
        del peers[OTHER_SITE]


class _NoCell:
    """Cell of an agent without a connection."""

    def register_request_cb(self, **options: Any) -> None: ...


def attack_processors(engine: Any) -> None:
    """Raise RuntimeError unless the processors of a site's commands refuse code, shells and other classes."""
    agent = FedAdminAgent("fco", _NoCell(), engine)
    for processor in ClientRequestProcessors.request_processors:
        agent.register_processor(processor)

    def reply_to(topic: str, body: Any) -> str:
        request = AdminMessage(topic, body)
        request.set_header("user_role", "super")
        return str(agent._dispatch_request(new_cell_message({}, request)).payload.body)

    version = reply_to(SysCommandTopic.REPORT_VERSION, "")
    _require("not an allowed" not in version and "error" not in version.lower(), "an allowed command is refused")
    refusals = {topic: f"{topic} is not an allowed command" for topic in _topics() if topic not in ALLOWED_TOPICS}
    _require(SysCommandTopic.SHELL in refusals, "the shell command is not registered")
    _require(refusals[SysCommandTopic.SHELL] in reply_to(SysCommandTopic.SHELL, "true"), "a shell command is accepted")
    for topic, refusal in refusals.items():
        _require(refusal in reply_to(topic, ""), f"the command {topic} is accepted")
    other_class = json.loads(json.dumps(SITE_JOB))
    other_class["executors"][0]["executor"]["path"] = "subprocess.Popen"
    for attack, job in {
        "a job with code": _packed({CONFIG: json.dumps(SITE_JOB), "custom/code.py": ""}),
        "a job with a class off the list": _packed({CONFIG: json.dumps(other_class)}),
    }.items():
        refused = "not the job that fco-run submits" in reply_to(TrainingTopic.DEPLOY, job)
        _require(refused, f"{attack} is accepted")


def _topics() -> list[str]:
    return [topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()]


def _packed(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return packed.getvalue()


def _require(condition: bool, failure: str) -> None:
    if not condition:
        raise RuntimeError(f"self-test: {failure}")
