"""What a site decides for itself, in its own `site.yaml`, and what it writes down of what it was asked."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from fco_cli.errors import UserError, require
from fco_cli.federation.message import Message
from fco_cli.federation.typed import typed
from fco_cli.files import as_yaml


class Refusal(Exception):
    """A site says no; the line is for the analyst, and tells nothing of the rows."""


@dataclass
class Policy:
    """`site.yaml`; null: no limit, or all that there are."""

    min_rows: int = 10  # a run whose share of the rows would be smaller is refused
    losses: list[str] | None = None
    algorithms: list[str] | None = None
    regularizers: list[str] | None = None
    messages: list[str] | None = None  # of describe, prepare, count, apply, stack, train, evaluate, curvature, ...
    share_names: bool = True  # of features and classes; without them an exported model says x0, x1, ...
    share_histograms: bool = True  # of scores, from which the AUC over all sites is computed
    masks: bool = False  # whether rounds and evaluations are answered through masks only
    max_rounds: int | None = None  # over all runs, as counted in the audit file
    max_evaluations: int | None = None
    max_numbers: int = 100_000_000  # parameters times jobs

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            if key.name.startswith(("min", "max")):
                require(value is None or value >= 1, f"site.yaml: {key.name}", value, "null or a whole number >= 1")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """The site's file; one that is not there is written, so that there is something to edit."""
        if not path.exists():
            path.write_text("# What this site answers (docs/federation.md); null: no limit.\n" + as_yaml(vars(cls())))
        try:
            return typed(cls, yaml.safe_load(path.read_text()) or {}, str(path))
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
            raise UserError(f"{path}: cannot be read: {type(problem).__name__}") from problem

    def check(self, key: str, name: str) -> None:
        """Whether `name` is among those that a list of the policy allows."""
        allowed = getattr(self, key)
        if allowed is not None and name not in allowed:
            raise Refusal(f"its policy does not allow {name} ({key}: {', '.join(allowed) or 'none'})")


class Audit:
    """A line for every message: when, its kind, size and hash, and what became of it. Never a row, never a number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(errors="replace") if path.exists() else ""
        if text and not text.endswith("\n"):  # a kill or a power failure can tear the last line
            self._append("\n")
        entries = audited(text)
        self.answered = Counter(entry["kind"] for entry in entries if entry["outcome"] == "answered")

    def write(self, kind: str, content: bytes, outcome: str) -> None:
        entry = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "kind": kind,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "outcome": outcome,
        }
        self._append(json.dumps(entry) + "\n")
        self.answered[kind] += outcome == "answered"

    def check(self, message: Message, policy: Policy) -> None:
        """Refuse what is beyond the limits over all runs."""
        limits = {"train": policy.max_rounds, "evaluate": policy.max_evaluations}
        limit = limits.get(message.kind)
        if limit is not None and self.answered[message.kind] >= limit:
            what = "rounds" if message.kind == "train" else "evaluations"
            raise Refusal(f"its limit of {limit} {what} is reached (site.yaml: max_{what})")

    def _append(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


def audited(text: str) -> Iterator[dict[str, Any]]:
    """The lines of an audit file that are whole."""
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)
