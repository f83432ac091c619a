"""What a party writes down of what it was asked: a line of JSON for every message, and for whatever was turned away."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

FILE = "audit.jsonl"  # in the party's folder


class Entry(msgspec.Struct):
    """A line of the file: time, the message's kind, size and hash, and the outcome; never a row, never its numbers."""

    at: str
    kind: str
    bytes: int
    sha256: str
    outcome: str


def write_down(path: Path, kind: str, outcome: str, content: bytes = b"") -> None:
    """Append a line for a message."""
    at, digest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), hashlib.sha256(content).hexdigest()
    with path.open("ab") as file:
        file.write(msgspec.json.encode(Entry(at, kind, len(content), digest, outcome)) + b"\n")


def audited(text: str) -> Iterator[Entry]:
    """Return the valid lines of an audit file."""
    for line in text.splitlines():
        try:
            yield msgspec.json.decode(line, type=Entry)
        except (ValueError, RecursionError):  # a torn line, or one that somebody else wrote
            continue


class Audit:
    """A site's file, which also counts what it has answered over all runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # a kill or a power failure can tear the last line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        self.answered = Counter(entry.kind for entry in audited(text) if entry.outcome == "answered")

    def write(self, kind: str, content: bytes, outcome: str) -> None:
        write_down(self.path, kind, outcome, content)
        self.answered[kind] += outcome == "answered"
