"""Audit file of a party: one JSON line for every received or refused message."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

AUDIT_FILE = "audit.jsonl"  # in the party's folder


class Entry(msgspec.Struct):
    """Line of the file: time, outcome, and the message's kind, size and hash; it contains no data."""

    at: str
    kind: str
    bytes: int
    sha256: str
    outcome: str


def append_entry(path: Path, kind: str, outcome: str, content: bytes = b"") -> None:
    """Append the entry of a message to an audit file."""
    at, digest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), hashlib.sha256(content).hexdigest()
    with path.open("ab") as file:
        file.write(msgspec.json.encode(Entry(at, kind, len(content), digest, outcome)) + b"\n")


def read_entries(text: str) -> Iterator[Entry]:
    """Yield the valid entries of an audit file."""
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=Entry)
        except (ValueError, RecursionError):  # an incomplete or foreign line
            continue


class Audit:
    """Audit file of a site, with the numbers of answered requests over all runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # a crash can leave an incomplete last line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        self.answered = Counter(entry.kind for entry in read_entries(text) if entry.outcome == "answered")

    def write(self, kind: str, content: bytes, outcome: str) -> None:
        append_entry(self.path, kind, outcome, content)
        self.answered[kind] += outcome == "answered"
