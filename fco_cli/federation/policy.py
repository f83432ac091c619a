"""Policy of a site, stored in its `site.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from fco_cli.errors import UserError, require
from fco_cli.federation.message import parse_dataclass
from fco_cli.files import as_yaml


class Refusal(Exception):
    """Refusal of a request; its message is sent to the analyst and contains no information about rows."""


@dataclass
class Policy:
    """Contents of `site.yaml`; null: no limit, or everything allowed."""

    min_rows: int = 10  # runs with fewer training rows, or fewer held-out rows in a fold, are refused
    losses: list[str] | None = None
    algorithms: list[str] | None = None
    regularizers: list[str] | None = None
    messages: list[str] | None = None  # kinds: describe, prepare, count, apply, stack, train, evaluate, curvature, ...
    share_names: bool = True  # of features and classes; otherwise features of a model are named x0, x1, ...
    share_histograms: bool = True  # of scores, for the AUC over all sites, and of columns, for medians
    masks: bool = False  # true: responses to rounds and evaluations must be masked
    max_rounds: int | None = None  # over all runs, counted in the audit file
    max_evaluations: int | None = None
    max_numbers: int = 100_000_000  # parameters times jobs, and rows visited in a round

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            if key.name.startswith(("min", "max")):
                require(value is None or value >= 1, f"site.yaml: {key.name}", value, "null or a whole number >= 1")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read the policy; write the default to the file first if it does not exist."""
        if not path.exists():
            path.write_text(
                "# Policy of this site (docs/federation.md); null: no limit.\n" + as_yaml(vars(cls())),
                encoding="utf-8",
            )
        try:
            return parse_dataclass(cls, yaml.safe_load(path.read_text(encoding="utf-8")) or {}, str(path))
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
            raise UserError(f"{path}: cannot be read: {type(problem).__name__}") from problem

    def check(self, key: str, name: str) -> None:
        """Raise Refusal if `name` is not in the policy's list `key`."""
        allowed = getattr(self, key)
        if allowed is not None and name not in allowed:
            raise Refusal(f"the site's policy does not allow {name} ({key}: {', '.join(allowed) or 'none'})")

    def check_numbers(self, count: int) -> None:
        """Raise Refusal if `count` numbers are more than `max_numbers`."""
        if count > self.max_numbers:
            raise Refusal(f"more numbers than the site's policy allows (max_numbers: {self.max_numbers})")

    def check_limits(self, kind: str, answered: Mapping[str, int]) -> None:
        """Raise Refusal if the limit of requests of that kind over all runs is reached."""
        limits = {"train": ("rounds", self.max_rounds), "evaluate": ("evaluations", self.max_evaluations)}
        what, limit = limits.get(kind, ("", None))
        if limit is not None and answered[kind] >= limit:
            raise Refusal(f"the site's limit of {limit} {what} is reached (site.yaml: max_{what})")
