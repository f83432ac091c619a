"""Audit files: a chain of entries, in which changed, removed and inserted ones are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.federation.site import audit
from fco_cli.federation.site.audit import Audit, all_entries, append_entry, read_entries, verify

OLD = '{"at":"2025-01-01T00:00:00Z","kind":"train","bytes":3,"sha256":"00","outcome":"answered"}\n'


@pytest.fixture
def path(tmp_path) -> Path:
    """Return an audit file with five entries."""
    made = tmp_path / "audit.jsonl"
    for number in range(5):
        append_entry(made, "train", "answered", str(number).encode())
    return made


def test_an_intact_file_is_verified(path):
    assert verify(path) == 5


@pytest.mark.parametrize("line", range(5))
def test_a_changed_entry_is_found(path, line):
    lines = path.read_text().splitlines(keepends=True)
    lines[line] = lines[line].replace("answered", "refused")
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=f"line {line + 1} was changed"):
        verify(path)


@pytest.mark.parametrize("line", range(5))
def test_a_removed_entry_is_found(path, line):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(UserError, match="removed"):
        verify(path)


def test_a_repeated_entry_is_found(path):
    path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[-1])
    with pytest.raises(UserError, match="line 6 was changed, or entries before it were removed or inserted"):
        verify(path)


def test_a_removed_file_is_found_and_the_chain_continues(path):
    path.unlink()
    append_entry(path, "train", "answered")
    with pytest.raises(UserError, match="line 1 was changed, or entries before it were removed"):
        verify(path)
    assert [entry.number for entry in read_entries(path.read_text())] == [6]


def test_a_rotated_file_keeps_the_chain(path, monkeypatch):
    monkeypatch.setattr(audit, "ROTATE_BYTES", 2000)
    for _ in range(20):
        append_entry(path, "evaluate", "answered")
    assert len(list(path.parent.glob("audit.*.jsonl"))) >= 2
    assert verify(path) == 25
    assert [entry.number for entry in all_entries(path)] == list(range(1, 26))
    next(iter(sorted(path.parent.glob("audit.*.jsonl")))).unlink()
    with pytest.raises(UserError, match="removed"):
        verify(path)


def test_a_killed_process_between_the_entry_and_the_head(path):
    head = path.with_name("audit.head")
    before = head.read_bytes()
    append_entry(path, "train", "answered")
    head.write_bytes(before)
    append_entry(path, "train", "answered")
    assert verify(path) == 7


def test_processes_write_one_chain(path):
    code = (
        "import sys, pathlib; from fco_cli.federation.site.audit import append_entry\n"
        "for _ in range(20): append_entry(pathlib.Path(sys.argv[1]), 'train', 'answered')"
    )
    with ThreadPoolExecutor(3) as executor:
        list(executor.map(lambda _: subprocess.run([sys.executable, "-c", code, str(path)], check=True), range(3)))
    assert verify(path) == 65


def test_entries_of_an_earlier_version_are_covered(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text(OLD * 2)
    append_entry(path, "train", "answered")
    assert verify(path) == 1
    path.write_text(path.read_text().replace("2025-01-01", "2025-01-02", 1))
    with pytest.raises(UserError, match="line 3 was changed"):
        verify(path)


def test_an_incomplete_line_does_not_end_the_file(path):
    path.write_text(path.read_text()[:-40])
    append_entry(path, "evaluate", "answered")
    assert [entry.kind for entry in read_entries(path.read_text())] == ["train"] * 4 + ["evaluate"]
    with pytest.raises(UserError, match="line 5 was changed"):
        verify(path)


@pytest.mark.parametrize("line", ["5", "null", "[]", "{}", '{"kind": 3, "outcome": "answered"}', "[" * 100_000, "\0"])
def test_a_line_that_is_not_an_entry_is_skipped(path, line):
    path.write_text(f"{line}\n{path.read_text()}{line}\n")
    assert len(list(read_entries(path.read_text()))) == 5


def test_questions_are_stored_in_full_and_answers_by_size(tmp_path):
    path = tmp_path / "audit.jsonl"
    one = Audit(path)
    one.session, one.analyst = "f" * 32, "jane@desk"
    question = Message("evaluate", {"jobs": 1}, {"w": np.array([[1.5, -2.0]]), "big": np.zeros((2, 1000))})
    one.write("evaluate", question.packed(), "answered", question, 1, 10)
    entry = json.loads(path.read_text())
    assert entry["question"]["jobs"] == 1
    assert entry["question"]["arrays"]["w"] == [[1.5, -2.0]]
    assert entry["question"]["arrays"]["big"]["shape"] == [2, 1000]
    assert (entry["session"], entry["analyst"]) == ("f" * 32, "jane@desk")
    assert (entry["answer_numbers"], entry["answer_bytes"]) == (1, 10)


def test_verification_continues_after_a_changed_line(path):
    """One changed line is distinguished from several."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1].replace("answered", "refused"), *lines[2:]]))
    with pytest.raises(UserError, match=r"line 2 was changed, .*; all lines after it are intact"):
        verify(path)
    path.write_text("".join([lines[0], lines[2].replace("answered", "refused"), lines[1], *lines[3:]]))
    with pytest.raises(UserError, match=r"line 2 was changed, .*; so were 2 lines after it"):
        verify(path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files need /proc")
def test_a_flushed_entry_is_on_disk_before_its_head(tmp_path, monkeypatch):
    """After a power failure, an entry without its head is accepted; a head without its entry would break the chain."""
    path, written = tmp_path / "audit.jsonl", []
    pwrite, flush = os.pwrite, audit.flush_file

    def name_of(file: int) -> str:
        return Path(f"/proc/self/fd/{file}").readlink().name

    monkeypatch.setattr(os, "pwrite", lambda file, *rest: written.append(name_of(file)) or pwrite(file, *rest))
    monkeypatch.setattr(
        audit, "flush_file", lambda file, **more: written.append(f"flush {name_of(file)}") or flush(file, **more)
    )
    append_entry(path, "train", "answered", flush=True)
    append_entry(path, "train", "answered")
    entry, head = ["audit.jsonl"], ["audit.head"]
    assert written == [*entry, "flush audit.jsonl", *head, *entry, *head]
