"""Policy of a site, stored in its `site.yaml`: limits of what the site answers, with three presets."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fco_cli.errors import UserError, require
from fco_cli.federation.message import parse_dataclass
from fco_cli.files import as_yaml, write_atomically

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

POLICY_FILE = "site.yaml"  # in the site's folder
OPTIONS = {"coordinator": "--coordinator", "peers": "--peer", "keep_numbers": "--keep-numbers"}  # of `join`, by key
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
LOWEST_MIN_ROWS = 3  # of `min_rows`


class Refusal(Exception):
    """Refusal of a request; its message is sent to the analyst and contains no information about rows."""


def plural(count: int, noun: str) -> str:
    """Return the count with its noun: 1 row, 2 rows."""
    return f"{count} {noun}{'s' * (count != 1)}"


COMMENTS = {  # above the keys in `site.yaml`
    "min_rows": "smallest number of rows behind an answered number: batch, part, fold, cell; at least 3",
    "site_splits": "the site draws training, validation and test rows, folds and batches; false: the analyst does",
    "refuse_differences": "refuse differences below min_rows rows, steep models, kinks, clipped rows with little noise",
    "fixed_group": "masked sums need all sites of a session, and its group must not differ by 1 or 2 sites from others",
    "hide_small_cells": "merge or hide categories, bins, counts, cross cells below min_rows; round extremes of columns",
    "max_subsets": "different row subsets (training rows, folds, ...) over all runs",
    "max_subsets_per_row": "the same, relative to the number of rows",
    "max_equations_per_value": "answered numbers over all runs, relative to the values in the table (rows x columns)",
    "max_rounds": "models trained, one per job and round, over all runs",
    "max_evaluations": "models evaluated over all runs",
    "max_counts": "histograms of columns (count) and noisy moments over all runs",
    "max_overflows": "masked models reported as out of range over all runs",
    "max_steep_models": "models refused because few rows determine their curvature, over all runs",
    "max_models_per_request": "models of one request",
    "max_local_steps": "local steps of one round",
    "max_numbers": "parameters times jobs of a request, and rows visited in a round",
    "max_parameters_per_row": "model parameters per row, for Hessians (paths, second-order methods) and client_lr=auto",
    "max_categories_per_row": "a text column with more categories per row is an identifier",
    "keep_numbers": "columns of whole numbers that are measurements, although they look like record numbers",
    "min_noise": "smallest noise multiplier of messages and evaluations; 0: noise is not required",
    "colluding_sites": "sites that may disclose their shares of a noise; it must hide rows also from them",
    "masks": "true: statistics of columns, rounds and evaluations are answered with masks only (at least three sites)",
    "share_names": "names of features and classes; false: features are named x0, x1, ...",
    "share_accuracy": "numbers of correctly classified rows, and mean squared losses, for standard errors",
    "share_histograms": "of held-out scores (AUC), of columns (medians, knots), and of survival times (curves, tests)",
    "share_estimates": "estimates from this site's rows alone (meta-analysis); products of its gradient in masked sums",
    "flush": "true: ledger and audit file are on disk before an answer is sent; false: within a second",
    "losses": "allowed losses",
    "algorithms": "allowed algorithms",
    "regularizers": "allowed regularizers",
    "transforms": "allowed transforms of messages",
    "messages": "allowed kinds of requests: describe, prepare, evaluate, train, ...",
    "authority": "fingerprint of the only certificate authority whose kit the site uses",
    "coordinator": "fingerprint of the server's certificate; null: any certificate of the authority for its host",
    "peers": "the only sites of masked sums, with their certificates' fingerprints; null: any of the authority",
}


@dataclass(frozen=True)
class Policy:
    """Contents of `site.yaml`; the defaults are the preset `strict`; null: no limit, or everything allowed."""

    min_rows: int = 10
    site_splits: bool = True
    refuse_differences: bool = True
    fixed_group: bool = True
    hide_small_cells: bool = True
    max_subsets: int | None = 100
    max_subsets_per_row: float | None = 0.33
    max_equations_per_value: float | None = 0.5
    max_rounds: int | None = 5000
    max_evaluations: int | None = 5000
    max_counts: int | None = 100
    max_overflows: int | None = 20
    max_steep_models: int | None = 20
    max_models_per_request: int | None = 100
    max_local_steps: int | None = 1000
    max_numbers: int = 100_000_000
    max_parameters_per_row: float | None = 0.33
    max_categories_per_row: float | None = 0.5
    keep_numbers: list[str] | None = None
    min_noise: float = 0.0
    colluding_sites: int = 1
    masks: bool = False
    share_names: bool = True
    share_accuracy: bool = False
    share_histograms: bool = False
    share_estimates: bool = False
    flush: bool = True
    losses: list[str] | None = None
    algorithms: list[str] | None = None
    regularizers: list[str] | None = None
    transforms: list[str] | None = None
    messages: list[str] | None = None
    authority: str | None = None
    coordinator: str | None = None
    peers: dict[str, str | None] | None = None

    def __post_init__(self) -> None:
        pins = {f"peers.{name}": one for name, one in (self.peers or {}).items()} | {"coordinator": self.coordinator}
        for pinned, pin in pins.items():
            is_valid = pin is None or FINGERPRINT.fullmatch(normalized(pin)) is not None
            require(is_valid, f"{POLICY_FILE}: {pinned}", pin, "null or a SHA-256 fingerprint, SHA256: and 64 digits")
        allowed = f"a whole number >= {LOWEST_MIN_ROWS}"
        require(self.min_rows >= LOWEST_MIN_ROWS, f"{POLICY_FILE}: min_rows", self.min_rows, allowed)
        in_range = 0 <= self.min_noise < math.inf
        require(in_range, f"{POLICY_FILE}: min_noise", self.min_noise, "a number >= 0")
        allowed = "a whole number >= 0"
        require(self.colluding_sites >= 0, f"{POLICY_FILE}: colluding_sites", self.colluding_sites, allowed)
        for key in fields(self):
            value = getattr(self, key.name)
            if key.name.startswith("max") and isinstance(value, int):
                require(value >= 1, f"{POLICY_FILE}: {key.name}", value, "null or a whole number >= 1")
            elif key.name.startswith("max") and value is not None:
                require(0 < value < math.inf, f"{POLICY_FILE}: {key.name}", value, "null or a number > 0")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read the policy; raise UserError if the file is missing or invalid: such a site answers nothing."""
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            remedy = "restore it, or run fco-federate join with --policy strict"
            raise UserError(f"{path}: not found; without a policy the site answers nothing: {remedy}") from None
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as problem:
            name = type(problem).__name__
            raise UserError(f"{path}: cannot be read ({name}); without a policy the site answers nothing") from problem
        if not values:
            raise UserError(f"{path}: is empty; without a policy the site answers nothing")
        return parse_dataclass(cls, values, str(path))

    def as_text(self, preset: str) -> str:
        """Return the contents of `site.yaml`: every key with a comment."""
        lines = [f"# Policy of this site, preset {preset} (docs/federation.md); null: no limit, or everything allowed."]
        for key in fields(self):
            lines += [f"# {COMMENTS[key.name]}", as_yaml({key.name: getattr(self, key.name)}).rstrip("\n")]
        return "\n".join(lines) + "\n"

    @property
    def shares_tables(self) -> bool:
        """True if risk tables of the site's survival times are allowed."""
        allowed = self.messages is None or "risk_table" in self.messages
        return self.share_histograms and self.min_noise == 0 and not self.masks and allowed

    def check(self, key: str, name: str) -> None:
        """Raise Refusal if `name` is not in the policy's list `key`."""
        allowed = getattr(self, key)
        if allowed is not None and name not in allowed:
            raise Refusal(f"the site's policy does not allow {name} ({key}: {', '.join(allowed) or 'none'})")

    def check_numbers(self, count: int) -> None:
        """Raise Refusal if `count` numbers are more than `max_numbers`."""
        self.check_limit("max_numbers", count, f"{count:,} numbers")

    def check_limit(self, key: str, amount: float, requested: str) -> None:
        """Raise Refusal if an amount is above the limit `key`."""
        limit = getattr(self, key)
        if limit is not None and amount > limit:
            raise Refusal(f"{requested} requested; the site's policy allows {limit:,} ({POLICY_FILE}: {key})")

    def check_rows(self, rows: int, subject: str, remedy: str = "") -> None:
        """Raise Refusal if a subject, such as a batch, has fewer than `min_rows` rows."""
        if rows < self.min_rows:
            limit = f"the site's policy allows {self.min_rows} or more ({POLICY_FILE}: min_rows)"
            raise Refusal(f"{subject} of {plural(rows, 'row')} requested; {limit}{remedy and '; '}{remedy}")


_EXACT: dict[str, Any] = {
    "site_splits": False,
    "refuse_differences": False,
    "fixed_group": False,
    "hide_small_cells": False,
    "max_subsets": None,
    "max_subsets_per_row": None,
    "max_equations_per_value": None,
    "max_rounds": None,
    "max_evaluations": None,
    "max_counts": None,
    "max_overflows": None,
    "max_steep_models": None,
    "max_models_per_request": None,
    "max_parameters_per_row": None,
    "share_accuracy": True,
    "share_histograms": True,
    "share_estimates": True,
    "flush": False,
    "colluding_sites": 0,
}
PRESETS = {
    "strict": Policy(),
    "research": Policy(**_EXACT, max_local_steps=100_000),
    "demo": Policy(**_EXACT, min_rows=LOWEST_MIN_ROWS, max_local_steps=None, max_categories_per_row=None),
}


def preset(name: str, **changes: Any) -> Policy:
    """Return a preset with changed keys."""
    return replace(PRESETS[name], **changes)


def write_policy(path: Path, name: str | None, joined: bool, authority: str, **given: Any) -> None:
    """Write a preset to `site.yaml` unless the file exists; it is never rewritten.

    A site that has joined before can only replace a missing file by the preset `strict`. `given` are keys that options
    of `join` set: the fingerprints of the coordinator and the peers, and `keep_numbers`; raise UserError if an existing
    file has other values.
    """
    given = {key: value for key, value in given.items() if value}
    if path.exists():
        written = Policy.read(path) if given else None
        for key, value in given.items():
            allowed = f"as in {path}, which is never rewritten; edit it there"
            require(getattr(written, key) == value, OPTIONS[key], value, allowed)
        return
    if joined:
        allowed = f"strict: {path} is missing, and a site that has joined before can only start from strict again"
        require(name == "strict", "--policy", name, allowed)
    name = name or "strict"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, preset(name, authority=authority, **given).as_text(name).encode())


def check_authority(policy: Policy, certificate: Certificate) -> None:
    """Raise UserError if the kit's certificate authority is not the one that the policy names."""
    from cryptography.hazmat.primitives.hashes import SHA256

    digest = certificate.fingerprint(SHA256()).hex()
    if policy.authority is not None and normalized(policy.authority) != digest:
        raise UserError(f"{POLICY_FILE}: authority: got {policy.authority}, but the kit's authority is SHA256:{digest}")


def normalized(fingerprint: str) -> str:
    """Return a fingerprint as hexadecimal digits only."""
    return fingerprint.lower().removeprefix("sha256:").replace(":", "")
