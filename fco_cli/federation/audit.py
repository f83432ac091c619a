"""What a party writes down of what it was asked: a line of JSON for every message, and for whatever was turned away."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "audit.jsonl"  # in the party's folder


def write_down(path: Path, kind: str, outcome: str, content: bytes = b"") -> None:
    """When, the message's kind, size and hash, and what became of it; never a row, never a number of one."""
    entry = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kind": kind,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "outcome": outcome,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def audited(text: str) -> Iterator[dict[str, Any]]:
    """The lines of an audit file that are whole."""
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


class Audit:
    """A site's file, which also counts what it has answered over all runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(errors="replace", encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):  # a kill or a power failure can tear the last line
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
        entries = audited(text)
        self.answered = Counter(entry["kind"] for entry in entries if entry["outcome"] == "answered")

    def write(self, kind: str, content: bytes, outcome: str) -> None:
        write_down(self.path, kind, outcome, content)
        self.answered[kind] += outcome == "answered"
