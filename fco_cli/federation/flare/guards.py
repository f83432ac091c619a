"""Guards of FLARE's processes: a site accepts only its server's messages for a job, and nothing that brings code.

FLARE forwards messages between any two members, lets the sender of a command skip the site's authorization, and
accepts code in a job signed with the role "super". Without the guards, a site could run shell commands at another site
and a coordinator could run arbitrary code. `launch.py` installs them before FLARE starts. They fail closed: each one is
attacked (`self_test.py`) before the process connects or registers, and a failure ends the process. Refused messages are
logged in the party's audit file.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fco_cli.errors import UserError
from fco_cli.federation.flare.adapter import (
    FQCN,
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    AdminCommandNames,
    AioGrpcDriver,
    AuthorizationService,
    CellChannel,
    CommError,
    Communicator,
    ConnManager,
    CoreCell,
    DriverParams,
    FedAdminAgent,
    FLComponent,
    GrpcDriver,
    HandshakeKeys,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    ReservedTopic,
    ReturnCode,
    StreamHeaderKey,
    close_connection,
    make_reply,
    open_connections,
    peer_certificate,
)
from fco_cli.federation.flare.certificates import (
    Certificates,
    common_name,
    fingerprint,
    load_certificate,
    server_certificate,
)
from fco_cli.federation.flare.handshakes import report_failures
from fco_cli.federation.flare.jobs import GuardedProcessor
from fco_cli.federation.flare.rights import CHANNEL, READY, REQUEST
from fco_cli.federation.policy import POLICY_FILE, Policy, normalized
from fco_cli.federation.site.audit import append_entry
from fco_cli.files import write_atomically

log = logging.getLogger(__name__)

SERVER = "server"
COORDINATOR_FILE = "coordinator.pem"  # pinned certificate of the server, in the site's folder
ANY = None  # any topic of a channel
ALLOWED_REQUESTS: dict[str, tuple[str, ...] | None] = {  # topics that a site accepts from its server, by channel
    CHANNEL: (READY, REQUEST),
    CellChannel.CLIENT_MAIN: ANY,  # `GuardedProcessor` checks the topic inside of the message
    CellChannel.CLIENT_COMMAND: (AdminCommandNames.CHECK_STATUS, AdminCommandNames.ABORT, AdminCommandNames.SHUTDOWN),
    CellChannel.AUX_COMMUNICATION: (
        ReservedTopic.END_RUN,
        ReservedTopic.ABORT_ASK,
        ReservedTopic.SYNC_RUNNER,
        ReservedTopic.JOB_HEART_BEAT,
        ReservedTopic.TASK_CHECK,
    ),
    CellChannel.RETURN_ONLY: ANY,  # streamed replies
    CellChannel.CELLNET: ("bye",),
    STREAM_CHANNEL: (STREAM_ACK_TOPIC, STREAM_DATA_TOPIC, STREAM_ERROR_TOPIC),
}


def member(cell_name: str | None) -> str:
    """Return the member that owns a cell; cells of jobs are named MEMBER.JOB."""
    return (cell_name or "").split(".")[0]


def stop(reason: str) -> NoReturn:
    """End this process with one line and exit code 2; FLARE would catch an exception and continue."""
    sys.stderr.write(f"fco-federate: {' '.join(reason.split())}\n")
    sys.stderr.flush()
    os._exit(2)


@contextmanager
def fail_closed(action: str) -> Iterator[None]:
    """End this process if the block raises an exception."""
    try:
        yield
    except BaseException as problem:
        stop(f"{action} failed, so this party does not start: {type(problem).__name__}: {problem}")


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a method; `function` receives the original method and then its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*arguments: Any, **options: Any) -> Any:
        return function(original, *arguments, **options)

    setattr(owner, name, replacement)


class Guard:
    """Base class of the guards: refusals are logged and written to the audit file."""

    installed: Guard | None = None  # guard of this process

    def __init__(self, audit: Path) -> None:
        self.path = audit
        self.tested_by: int | None = None  # thread that attacks this guard

    def install(self) -> None:
        """Replace the entry points of FLARE."""
        replace(CoreCell, "start", self._start_cell)
        Guard.installed = self

    def refuse(self, kind: str, reason: str, content: bytes = b"") -> str:
        """Log a refusal and return its reason; attacks of the self-test are not logged."""
        if threading.get_ident() != self.tested_by:
            log.warning("refused: %s", reason)
            append_entry(self.path, kind, f"refused: {reason}", content)
        return reason

    def check(self, message: Any, me: str) -> Any:
        """Return an error reply to a message that this party refuses, else None."""
        raise NotImplementedError

    def _attack(self, cell: Any) -> None:
        """Raise RuntimeError unless the cell refuses the attacks of the self-test."""
        raise NotImplementedError

    @contextmanager
    def tested(self) -> Iterator[None]:
        """Attack this guard in the block."""
        self.tested_by = threading.get_ident()
        try:
            yield
        finally:
            self.tested_by = None

    def _start_cell(self, start: Callable[[Any], None], cell: Any) -> None:
        """Guard a cell and attack it, then connect it."""
        with fail_closed("the guard of incoming messages"):
            cell.add_incoming_filter("*", "*", self.check, member(cell.get_fqcn()))
            with self.tested():
                self._attack(cell)
        start(cell)


class SiteGuard(Guard):
    """Guard of a site's main process or of one of its job processes."""

    def __init__(self, audit: Path, is_job: bool) -> None:
        super().__init__(audit)
        self.is_job = is_job
        self.is_open = True  # False from the first connection until the self-test has passed

    def install(self) -> None:
        super().install()
        pin = read_pin(self.path.with_name(POLICY_FILE))
        if pin is not None:
            for driver in (GrpcDriver, AioGrpcDriver):
                replace(driver, "get_grpc_client_credentials", functools.partial(self._pinned_credentials, pin))
        replace(FedAdminAgent, "register_processor", self._register_processor)
        replace(Communicator, "client_registration", self._register)

    def check(self, message: Any, me: str) -> Any:
        """Return an error reply to a message from another member or to a request that is not allowed, else None."""
        peer = member(message.get_prop(MessagePropKey.ENDPOINT).name)
        origin = message.get_header(MessageHeaderKey.ORIGIN, "")
        if peer not in (SERVER, me) or member(origin) not in ((SERVER,) if peer == SERVER else (SERVER, me)):
            self.refuse("message", f"sender {origin} is not the server")
            return make_reply(ReturnCode.UNAUTHENTICATED, "the sender is not the server")
        if message.get_header(MessageHeaderKey.MSG_TYPE) != MessageType.REQ or member(origin) == me:
            return None
        for channel, topic in _requests_of(message):
            topics = ALLOWED_REQUESTS.get(channel, ())
            if not self.is_open or (topics is not ANY and topic not in topics):
                reason = self.refuse("message", f"{topic} is not an allowed command (channel {channel})")
                return make_reply(ReturnCode.INVALID_REQUEST, reason)
        return None

    def _pinned_credentials(self, pin: str, create: Callable[[Any], Any], params: dict[str, Any]) -> Any:
        """Return credentials of a connection that accept one certificate of the server, that of the site's policy.

        That certificate takes the authority's place, so gRPC refuses any other one, also later.
        """
        authority = Path(params[DriverParams.CA_CERT.value])
        host, port = params[DriverParams.HOST.value], int(params[DriverParams.PORT.value])
        certificate = server_certificate(host, port, authority)
        if (digest := hashlib.sha256(certificate).hexdigest()) != pin:
            stop(
                self.refuse(
                    "connection",
                    f"the server's certificate is SHA256:{digest}, not that of {POLICY_FILE} (coordinator)",
                )
            )
        path = self.path.with_name(COORDINATOR_FILE)
        write_atomically(path, ssl.DER_cert_to_PEM_cert(certificate).encode())
        return create({**params, DriverParams.CA_CERT.value: str(path)})

    def _attack(self, cell: Any) -> None:
        from fco_cli.federation.flare.self_test import attack_site

        attack_site(cell)
        self.is_open = self.is_job

    def _register_processor(self, register: Callable[..., None], agent: Any, processor: Any) -> None:
        register(agent, GuardedProcessor(self.refuse, processor))

    def _register(self, register: Callable[..., Any], communicator: Any, name: str, project: str, context: Any) -> Any:
        """Attack the processors of commands, then register with the server."""
        from fco_cli.federation.flare.self_test import attack_processors

        with fail_closed("the guard of commands"), self.tested():
            attack_processors(context.get_engine())
        self.is_open = True
        log.info("the guards refused all attacks of the self-test")
        return register(communicator, name, project, context)


def read_pin(policy: Path) -> str | None:
    """Return the fingerprint of the server's certificate in a policy, or None."""
    try:
        pin = Policy.read(policy).coordinator
    except UserError:
        return None  # without a valid policy, the site answers nothing
    return None if pin is None else normalized(pin)


def _requests_of(message: Any) -> Iterator[tuple[str, str]]:
    """Yield the channel and topic of a request, and those of the request in a stream."""
    channel, topic = message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC)
    yield channel, topic
    if (channel, topic) == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        inner = message.get_header(StreamHeaderKey.CHANNEL)
        if inner is not None or not message.get_header(StreamHeaderKey.SEQUENCE):
            yield inner, message.get_header(StreamHeaderKey.TOPIC)


@dataclass
class Peer:
    """Connected party: its name and the fingerprint of its certificate."""

    connection: Any
    name: str
    sha256: str


class ServerGuard(Guard):
    """Guard of the server: senders must match their connection's certificate and send to the server only.

    The certificate must be the current one of its name. A second connection with the same name, such as from a copied
    kit, is refused while the first is open.
    """

    def __init__(self, audit: Path, is_job: bool) -> None:
        super().__init__(audit)
        self.is_job = is_job
        self.certificates = Certificates(audit.parent)
        self.lock = threading.Lock()  # of new connections
        self.peers: dict[str, Peer] = {}  # parties with a certificate, by endpoint

    def install(self) -> None:
        super().install()
        if not self.is_job:
            replace(ConnManager, "update_endpoint", self._update_endpoint)
            authorize = AuthorizationService.authorize
            AuthorizationService.authorize = staticmethod(functools.partial(self._authorize, authorize))

    def check(self, message: Any, me: str) -> Any:
        """Return an error reply to a message with a forged sender or between members, else None."""
        endpoint = message.get_prop(MessagePropKey.ENDPOINT).name
        peer, origin = member(endpoint), member(message.get_header(MessageHeaderKey.ORIGIN))
        if peer == SERVER:
            return None
        if reason := self._refusal(endpoint):
            self.refuse("message", reason)
            self._close(endpoint)
            return make_reply(ReturnCode.UNAUTHENTICATED, reason)
        destination = member(message.get_header(MessageHeaderKey.DESTINATION))
        if origin == peer and destination == SERVER:
            return None
        self.refuse("message", f"sent by {peer} ({origin} -> {destination})")
        return make_reply(ReturnCode.UNAUTHENTICATED, "members may send to the server only")

    def _refusal(self, endpoint: str) -> str | None:
        """Return why a connected party is refused by now, or None."""
        peer = self.peers.get(endpoint)
        return f"{endpoint} has no certificate" if peer is None else self.certificates.refusal(peer.name, peer.sha256)

    def _close(self, endpoint: str) -> None:
        """Close the connection of a party."""
        peer = self.peers.pop(endpoint, None)
        if peer is not None:
            close_connection(peer.connection)

    def _attack(self, cell: Any) -> None:
        from fco_cli.federation.flare.self_test import attack_server

        attack_server(cell, self.peers, self._own_certificate())
        if not self.is_job:
            report_failures(functools.partial(self.refuse, "connection"))

    def _update_endpoint(
        self, update: Callable[..., None], manager: Any, connection: Any, data: dict[str, Any]
    ) -> None:
        """Accept a connection unless its certificate is refused or its name is connected already."""
        endpoint = FQCN.normalize(data.get(HandshakeKeys.ENDPOINT_NAME) or "")
        try:
            with self.lock:
                self._accept(manager, connection, endpoint)
                update(manager, connection, data)
        except Exception as problem:  # FLARE logs it and drops the connection
            self.refuse("connection", str(getattr(problem, "message", problem)))
            raise

    def _accept(self, manager: Any, connection: Any, endpoint: str) -> None:
        """Raise CommError if the connection is refused; store its party, and forget those without a connection."""
        peer = self._peer(connection)
        if reason := peer and self.certificates.refusal(peer.name, peer.sha256):
            close_connection(connection)
            raise CommError(CommError.BAD_DATA, reason)
        if endpoint in self.peers and self._refusal(endpoint):  # the party connects with its new certificate
            self._close(endpoint)
        elif any(one is not connection for one in open_connections(manager, endpoint)):
            close_connection(connection)
            raise CommError(CommError.BAD_DATA, f"{endpoint} is connected already")
        self.peers = {name: one for name, one in self.peers.items() if open_connections(manager, name)}
        if peer is not None:
            self.peers[endpoint] = peer

    def _own_certificate(self) -> Peer:
        """Return a party with a certificate that is accepted, for the self-test."""
        for name, issued in self.certificates.issued.items():
            if issued.revoked is None:
                return Peer(None, name, issued.sha256)
        raise RuntimeError(f"{self.certificates.path} has no valid certificate; run fco-federate rotate")

    def _peer(self, connection: Any) -> Peer | None:
        """Return the party at the other end of a connection; None for one without a certificate."""
        pem = peer_certificate(connection)
        if pem is None:
            return None
        certificate = load_certificate(pem)
        return Peer(connection, common_name(certificate), fingerprint(certificate))

    def _authorize(self, authorize: Callable[[Any], tuple[bool, str]], context: Any) -> tuple[bool, str]:
        """Return FLARE's decision and log a refusal."""
        allowed, reason = authorize(context)
        if not allowed:
            self.refuse("right", reason)
        return allowed, reason


class RequireGuard(FLComponent):
    """Component of every kit that ends FLARE's processes which `launch.py` did not start, such as by `start.sh`."""

    def __init__(self) -> None:
        super().__init__()
        if Guard.installed is None:
            stop("this process of NVIDIA FLARE has no guards; start the party by fco-federate join or serve")
