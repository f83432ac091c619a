"""What a site decides for itself, in its own `site.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from fco_cli.errors import UserError, require
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
    max_numbers: int = 100_000_000  # parameters times jobs, and rows that a round visits

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            if key.name.startswith(("min", "max")):
                require(value is None or value >= 1, f"site.yaml: {key.name}", value, "null or a whole number >= 1")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """The site's file; one that is not there is written, so that there is something to edit."""
        if not path.exists():
            path.write_text(
                "# What this site answers (docs/federation.md); null: no limit.\n" + as_yaml(vars(cls())),
                encoding="utf-8",
            )
        try:
            return typed(cls, yaml.safe_load(path.read_text(encoding="utf-8")) or {}, str(path))
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
            raise UserError(f"{path}: cannot be read: {type(problem).__name__}") from problem

    def check(self, key: str, name: str) -> None:
        """Whether `name` is among those that a list of the policy allows."""
        allowed = getattr(self, key)
        if allowed is not None and name not in allowed:
            raise Refusal(f"its policy does not allow {name} ({key}: {', '.join(allowed) or 'none'})")

    def check_numbers(self, count: int) -> None:
        """Refuse a stack of more numbers than is allowed."""
        if count > self.max_numbers:
            raise Refusal(f"more numbers than its policy allows (max_numbers: {self.max_numbers})")

    def check_limits(self, kind: str, answered: Mapping[str, int]) -> None:
        """Whether one more question of that kind is within the limits over all runs."""
        limits = {"train": ("rounds", self.max_rounds), "evaluate": ("evaluations", self.max_evaluations)}
        what, limit = limits.get(kind, ("", None))
        if limit is not None and answered[kind] >= limit:
            raise Refusal(f"its limit of {limit} {what} is reached (site.yaml: max_{what})")
