"""Messages and jobs that a site accepts; attacks with real processes are in test_flare.py."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")
from cryptography.hazmat.primitives import serialization

from fco_cli.federation.flare import guards, self_test
from fco_cli.federation.flare.adapter import (
    PROGRAMS,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    AdminCommandNames,
    CellChannel,
    CommError,
    CoreCell,
    Endpoint,
    HandshakeKeys,
    Message,
    MessageHeaderKey,
    MessagePropKey,
    MessageType,
    StreamHeaderKey,
)
from fco_cli.federation.flare.certificates import CERTIFICATES_FILE
from fco_cli.federation.flare.guards import ServerGuard, SiteGuard
from fco_cli.federation.flare.jobs import CONFIG, MAX_CONFIG_BYTES, SIGNATURES, guarded_command, is_fco_job
from fco_cli.federation.flare.link import FlareLink


def message(peer: str, origin: str, channel: str, topic: str, **inner: str) -> Message:
    headers = {
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
    }
    made = Message(headers | inner, None)
    made.set_prop(MessagePropKey.ENDPOINT, Endpoint(peer))
    return made


NUMBERS = itertools.count(1)  # names of cells are used once
COMMAND = CellChannel.CLIENT_COMMAND
NOT_ALLOWED, NOT_SERVER = "is not an allowed command", "is not the server"


@pytest.mark.parametrize(
    ("received", "line"),
    [
        (message("server", "server.job", COMMAND, AdminCommandNames.CHECK_STATUS), None),
        (message("server", "server.job", "fco", "ask"), None),
        (message("north", "server.job", "fco", "ask"), None),  # forwarded by the site's main process
        (message("north", "north.job", "task", "anything"), None),
        (message("south", "south", "fco", "ask"), NOT_SERVER),
        (message("south", "server", "fco", "ask"), NOT_SERVER),
        (message("server", "south", "fco", "ask"), NOT_SERVER),
        (message("server", "north", "fco", "ask"), NOT_SERVER),
        (message("server", "server", COMMAND, AdminCommandNames.SHOW_ERRORS), NOT_ALLOWED),
        (message("server", "server", COMMAND, AdminCommandNames.CONFIGURE_JOB_LOG), NOT_ALLOWED),
        (message("server", "server", CellChannel.CELLNET, "bulk"), NOT_ALLOWED),
        (message("server", "server", CellChannel.AUX_COMMUNICATION, "fed.event"), NOT_ALLOWED),
        (message("server", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC), NOT_ALLOWED),
        (
            message("server", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **{StreamHeaderKey.CHANNEL: "x"}),
            NOT_ALLOWED,
        ),
        (
            message("server", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **{StreamHeaderKey.CHANNEL: "return_only"}),
            None,
        ),
    ],
)
def test_a_site_accepts_allowed_messages_of_its_server_only(tmp_path, received, line):
    audit = tmp_path / "audit.jsonl"
    reply = SiteGuard(audit, is_job=True).check(received, "north")
    assert (reply is None) == (line is None)
    assert line is None or line in audit.read_text()


def test_a_site_refuses_all_requests_until_its_self_test_has_passed(tmp_path):
    guard = SiteGuard(tmp_path / "audit.jsonl", is_job=False)
    cell = new_cell("north")
    cell.add_incoming_filter("*", "*", guard.check, "north")
    guard._attack(cell)
    assert guard.check(message("server", "server", "fco", "ask"), "north") is not None


def new_cell(name: str) -> CoreCell:
    """Return the cell of a job of that member, which is not connected."""
    return CoreCell(f"{name}.{next(NUMBERS)}", "tcp://localhost:1", secure=False, credentials={})


@pytest.fixture
def site_cell(tmp_path) -> CoreCell:
    cell = new_cell("north")
    cell.add_incoming_filter("*", "*", SiteGuard(tmp_path / "audit.jsonl", is_job=True).check, "north")
    return cell


def test_the_self_test_passes_with_the_guard(site_cell, tmp_path):
    self_test.attack_site(site_cell)
    server = new_cell("server")
    guard = ServerGuard(tmp_path / "audit.jsonl", is_job=True)
    (tmp_path / CERTIFICATES_FILE).write_text('{"lead": {"sha256": "ab", "until": "2030-01-01"}}')
    server.add_incoming_filter("*", "*", guard.check, "server")
    guard._attack(server)
    assert not guard.peers


def test_the_self_test_fails_without_the_guard(tmp_path):
    with pytest.raises(RuntimeError, match="a message of another site is accepted"):
        self_test.attack_site(new_cell("north"))
    with pytest.raises(RuntimeError, match="a party without a certificate is accepted"):
        self_test.attack_server(new_cell("server"), {}, None)


def test_a_server_without_certificates_does_not_start(tmp_path):
    with pytest.raises(RuntimeError, match="has no valid certificate; run fco-federate rotate"):
        ServerGuard(tmp_path / "audit.jsonl", is_job=False)._attack(new_cell("server"))


@pytest.mark.parametrize("channel", ["fco-self-test", CellChannel.CELLNET, CellChannel.CLIENT_COMMAND])
def test_the_self_test_notices_an_open_channel(site_cell, monkeypatch, channel):
    monkeypatch.setitem(guards.ALLOWED_REQUESTS, channel, guards.ANY)
    with pytest.raises(RuntimeError, match="is accepted"):
        self_test.attack_site(site_cell)


def test_the_self_test_notices_a_filter_that_hides_the_guard(site_cell):
    """A filter of one channel replaces that of all channels in FLARE."""
    site_cell.add_incoming_filter("fco", "*", lambda received: None)
    with pytest.raises(RuntimeError, match="a message of another site is accepted"):
        self_test.attack_site(site_cell)


def test_the_self_test_notices_a_cell_that_receives_nothing(site_cell):
    site_cell.add_incoming_filter("*", "*", lambda received: Message())
    with pytest.raises(RuntimeError, match="does not arrive"):
        self_test.attack_site(site_cell)


class Connections:
    """Connections of a server, as far as the guard uses them."""

    def __init__(self, guard: ServerGuard, monkeypatch) -> None:
        self.guard, self.open, self.closed = guard, {}, []
        monkeypatch.setattr(guards, "open_connections", lambda manager, name: self.open.get(name, []))
        monkeypatch.setattr(guards, "close_connection", self.closed.append)
        monkeypatch.setattr(guards, "peer_certificate", lambda connection: connection.pem)

    def connect(self, name: str, certificate) -> SimpleNamespace:
        connection = SimpleNamespace(pem=certificate.public_bytes(serialization.Encoding.PEM))
        self.guard._update_endpoint(self._update, None, connection, {HandshakeKeys.ENDPOINT_NAME: name})
        return connection

    def _update(self, manager, connection, data) -> None:
        self.open[data[HandshakeKeys.ENDPOINT_NAME]] = [connection]


@pytest.fixture
def connections(tmp_path, monkeypatch) -> Connections:
    return Connections(ServerGuard(tmp_path / "audit.jsonl", is_job=False), monkeypatch)


def test_a_server_accepts_the_current_certificate_once(connections, signed, tmp_path):
    north, certificates = signed("north").certificate, connections.guard.certificates
    with pytest.raises(CommError, match="no certificate was issued to north"):
        connections.connect("north", north)
    certificates.accept("north", north)
    first = connections.connect("north", north)
    for name in ("north", " north"):
        with pytest.raises(CommError, match="north is connected already"):
            connections.connect(name, north)
    asked = message("north", "north", "task", "get_task")
    asked.set_header(MessageHeaderKey.DESTINATION, "server")
    assert connections.guard.check(asked, "server") is None
    certificates.revoke("north")
    assert connections.guard.check(asked, "server") is not None
    assert connections.closed[-1] is first
    for reason in ("was issued to north", "is connected already", "north is revoked"):
        assert reason in (tmp_path / "audit.jsonl").read_text()


def test_a_renewed_site_replaces_its_old_connection(connections, signed):
    old, new = signed("north").certificate, signed("new", calling="north").certificate
    connections.guard.certificates.accept("north", old)
    first = connections.connect("north", old)
    connections.connect("north.job", old)
    connections.open.pop("north.job")
    connections.guard.certificates.accept("north", new)
    connections.connect("north", new)
    assert connections.closed == [first]
    assert list(connections.guard.peers) == ["north"]  # closed ones are forgotten


def test_job_processes_are_guarded():
    command = f"python -m {PROGRAMS['client_job']} -n 1"
    assert guarded_command(command, "client_job") == "python -m fco_cli.federation.flare.launch client_job -n 1"
    with pytest.raises(RuntimeError, match="not a command"):
        guarded_command("python -m nvflare.private.other -n 1", "client_job")


def packed(files: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as app:
        for name, text in files.items():
            app.writestr(name, text)
    return made.getvalue()


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    """Return the site's part of the job that `fco-run` writes."""
    link = FlareLink.__new__(FlareLink)
    link.sites, link.key, link.min_sites = ["north"], "k", 1
    link._write_job(tmp_path)
    site = tmp_path / "site"
    return {str(path.relative_to(site)): path.read_text() for path in site.rglob("*") if path.is_file()}


def test_the_job_of_fco_run_with_its_signatures_is_accepted(files):
    signed = files | {f"{folder}{name}": "{}" for name in SIGNATURES for folder in ("", "config/")}
    assert is_fco_job(packed(signed))


@pytest.mark.parametrize("extra", ["custom/mine.py", "config/config_exchange.json", "config/../config/more.json", "x"])
def test_a_job_with_another_file_is_refused(files, extra):
    assert not is_fco_job(packed(files | {extra: "{}"}))


def test_a_job_with_another_class_is_refused(files):
    job = json.loads(files[CONFIG])
    job["executors"][0]["executor"]["path"] = "subprocess.Popen"
    assert not is_fco_job(packed(files | {CONFIG: json.dumps(job)}))
    assert not is_fco_job(packed(files | {CONFIG: files[CONFIG].replace("{}", '{"guard": null}')}))


def test_invalid_archives_are_refused(files):
    assert not is_fco_job(packed({}))
    assert not is_fco_job(b"PK")
    assert not is_fco_job(None)  # type: ignore[arg-type]
    assert not is_fco_job(packed({CONFIG: files[CONFIG] + " " * MAX_CONFIG_BYTES}))
    assert not is_fco_job(packed({CONFIG: "{"}))
