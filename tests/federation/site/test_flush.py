"""Power failures: answers wait until ledger and audit file are on disk, or both are flushed within a second."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fco_cli import files
from fco_cli.federation.message import Message
from fco_cli.federation.policy import preset

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files need /proc")


@pytest.fixture
def flushed(monkeypatch, tmp_path) -> list[tuple[str, bytes]]:
    """Return the growing list of the test's flushed files: names and contents. Timers of other tests may still run."""
    made, flush = [], files.flush_file

    def record(file: int, new_in: Path | None = None) -> None:
        flush(file, new_in)
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_relative_to(tmp_path):
            made.append((path.name, path.read_bytes()))

    for module in ("files", "federation.site.audit", "federation.site.ledger"):
        monkeypatch.setattr(f"fco_cli.{module}.flush_file", record)
    return made


def test_an_answer_of_a_strict_site_waits_for_the_disk(attack, flushed):
    attacker = attack()
    attacker.apply(attacker.prepare())
    flushed.clear()
    assert attacker.evaluate().kind == "evaluate"
    (ledger, counts), (models, weights), (audit, entries) = flushed
    assert (ledger, models, audit) == ("counts.json", "models.bin", "audit.jsonl")
    assert len(weights) > 2 * 60 * 8  # slopes and losses of the rows
    assert b'"evaluations":1,' in counts
    assert b'"kind":"evaluate"' in entries.splitlines()[-1]
    assert entries == attacker.site.audit.path.read_bytes()


def test_an_answer_that_adds_nothing_waits_for_two_flushes(attack, flushed):
    attacker = attack()
    attacker.apply(attacker.prepare())
    attacker.evaluate()
    flushed.clear()
    assert attacker.evaluate().kind == "evaluate"
    assert [name for name, _ in flushed] == ["counts.json", "audit.jsonl"]


def test_a_refusal_of_a_strict_site_is_on_disk(attack, flushed):
    attacker = attack()
    assert attacker.send("shell").kind == "refused"
    assert [name for name, _ in flushed] == ["audit.jsonl"]


def test_a_site_without_limits_flushes_within_a_second(attack, flushed, monkeypatch):
    assert files.FLUSH_SECONDS <= 1
    timers = []
    monkeypatch.setattr(
        files.threading, "Timer", lambda seconds, function: timers.append((seconds, function)) or Idle()
    )
    attacker = attack(preset("research"))
    attacker.apply(attacker.prepare())
    for _ in range(3):
        assert attacker.evaluate().kind == "evaluate"
    assert not flushed
    ((seconds, flush),) = timers  # one for all answers
    assert seconds == files.FLUSH_SECONDS
    flush()
    (audit, entries), (ledger, counts) = flushed
    assert (audit, entries) == ("audit.jsonl", attacker.site.audit.path.read_bytes())
    assert ledger == "counts.json"
    assert b'"evaluations":3,' in counts
    attacker.evaluate()
    assert len(timers) == 2


def test_files_are_flushed_in_a_thread(flushed, monkeypatch, tmp_path):
    monkeypatch.setattr(files, "FLUSH_SECONDS", 1e-3)
    (tmp_path / "one").write_bytes(b"content")
    delayed = files.DelayedFlush(tmp_path / "one", tmp_path / "removed")
    delayed.start()
    end = time.monotonic() + 60
    while not flushed and time.monotonic() < end:
        time.sleep(0.01)
    assert flushed == [("one", b"content")]
    assert not delayed.is_pending


class Idle:
    """Timer that does not run."""

    daemon = False

    def start(self) -> None: ...


def test_the_name_of_a_new_file_is_flushed(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(files, "flush_folder", folders.append)
    file = os.open(tmp_path / "new", os.O_RDWR | os.O_CREAT)
    files.flush_file(file)
    files.flush_file(file, new_in=tmp_path)
    os.close(file)
    assert [folder for folder in folders if folder == tmp_path] == [tmp_path]


def test_a_killed_session_with_a_truncated_audit_file_is_reported(attack):
    """The last lines may be lost on a site without limits; the lines after them are verified."""
    from fco_cli.errors import UserError
    from fco_cli.federation.site.audit import verify

    attacker = attack(preset("research"))
    attacker.apply(attacker.prepare())
    path = attacker.site.audit.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))  # its head counts the lost line
    assert Message.unpacked(attacker.site.handle(b"")).kind == "refused"
    attacker.evaluate()
    expected = f"line {len(lines)} was changed, or entries before it were removed or inserted; all lines after it"
    with pytest.raises(UserError, match=expected):
        verify(path)
