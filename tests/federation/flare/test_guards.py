"""Messages and jobs that a site accepts; attacks with real processes are in test_flare.py."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("nvflare")
from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import CellChannel

from fco_cli.federation.flare.guards import CONFIG, MAX_CONFIG_BYTES, SIGNATURES, SiteGuard, is_fco_job
from fco_cli.federation.flare.link import FlareLink


def message(origin: str, channel: str, topic: str) -> Message:
    headers = {MessageHeaderKey.ORIGIN: origin, MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
    return Message(headers, None)


@pytest.mark.parametrize(
    ("received", "line"),
    [
        (message("server.job", CellChannel.CLIENT_COMMAND, AdminCommandNames.CHECK_STATUS), None),
        (message("server.job", "fco", "ask"), None),
        (message("north.job", "fco", "ask"), None),
        (message("south", "fco", "ask"), "sender south is not the server"),
        (message("server", CellChannel.CLIENT_COMMAND, AdminCommandNames.SHOW_ERRORS), "is not an allowed command"),
        (
            message("server", CellChannel.CLIENT_COMMAND, AdminCommandNames.CONFIGURE_JOB_LOG),
            "is not an allowed command",
        ),
    ],
)
def test_a_job_accepts_allowed_messages_of_its_server_only(tmp_path, received, line):
    audit = tmp_path / "audit.jsonl"
    reply = SiteGuard(str(audit)).check(received, "north")
    assert (reply is None) == (line is None)
    assert line is None or line in audit.read_text()


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
    link.sites, link.key = ["north"], "k"
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


HANDSHAKES_SCRIPT = """
import os, sys
from fco_cli.federation.flare.guards import MARK, report_failures

report_failures(lambda reason: print(reason, flush=True))
os.write(2, b"something else\\n")
os.write(2, b"I1117 ssl.cc:1] " + MARK.encode() + b"SSL_ERROR_SSL: no certificate\\n")
sys.exit("the last line")
"""


def test_failed_handshakes_are_reported_and_all_lines_shown():
    done = subprocess.run([sys.executable, "-c", HANDSHAKES_SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "no certificate of this federation: SSL_ERROR_SSL: no certificate\n"
    assert [line.split("] ")[-1] for line in done.stderr.splitlines()] == [
        "something else", "Handshake failed with error SSL_ERROR_SSL: no certificate", "the last line",
    ]  # fmt: skip
