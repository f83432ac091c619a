"""Audit files with an incomplete or invalid line."""

from __future__ import annotations

import pytest

from fco_cli.federation.site.audit import Audit, read_entries


def test_an_incomplete_line_is_ignored(tmp_path):
    path = tmp_path / "audit.jsonl"
    first = Audit(path)
    first.write("train", b"one", "answered")
    first.write("train", b"two", "answered")
    path.write_text(path.read_text()[:-40])
    again = Audit(path)
    assert again.answered == {"train": 1}
    again.write("evaluate", b"three", "answered")
    assert [entry.kind for entry in read_entries(path.read_text())] == ["train", "evaluate"]
    assert Audit(path).answered == {"train": 1, "evaluate": 1}


@pytest.mark.parametrize("line", ["5", "null", "[]", "{}", '{"kind": 3, "outcome": "answered"}', "[" * 100_000, "\0"])
def test_a_line_that_is_not_an_entry_is_ignored(tmp_path, line):
    path = tmp_path / "audit.jsonl"
    Audit(path).write("train", b"one", "answered")
    path.write_text(f"{line}\n{path.read_text()}{line}\n")
    assert Audit(path).answered == {"train": 1}
