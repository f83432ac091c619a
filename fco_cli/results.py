"""Schemas of result.json: of a run, of a path and of the theory experiment.

Keys with a default are absent from records of earlier editions. Every reader of a result.json uses one of these.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fco_cli.typed_files import BadRecord, converted, one_printable_line, parse_json, read_bounded

LARGEST = 256 << 20  # bytes: a path lists its features

Count = Annotated[int, Meta(ge=0, le=10**12)]
Seed = Annotated[int, Meta(ge=0)]
Number = int | float
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
NotNegative = Annotated[float, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8,64}\Z")]
# It becomes part of a file's name: no separators, no dot in front.
Name = Annotated[str, Meta(pattern=r"\A\w[\w.-]{0,79}\Z")]
METRIC = r"\A\w[\w.()@=-]{0,79}\Z"
Metric = Annotated[str, Meta(pattern=METRIC)]
Metrics = dict[Metric, Number | None]  # null: not finite


class Result(msgspec.Struct, kw_only=True):
    """Keys that every result has."""

    status: Literal["finished", "diverged"]
    files: dict[str, Count | None] | None = None  # the other files, with their sizes in bytes; null: of any size

    required_files: ClassVar[tuple[str, ...]] = ()  # of a record without that list


class RunIdentity(msgspec.Struct, kw_only=True):
    """Digests that say which runs are comparable."""

    family: Digest
    problem: Digest
    run: Digest


class Convergence(msgspec.Struct, kw_only=True):
    """Verdict on a finished run."""

    converged: bool
    line: str


class RunResult(Result, kw_only=True):
    """Result of one run."""

    run_id: Digest
    identity: RunIdentity
    task: Name
    algo: Name
    federated: bool
    uses: Annotated[list[Name], Meta(max_length=100)]
    main_metric: Metric
    seed: Seed
    rounds: Count
    diverged_round: Count | None
    seconds: NotNegative
    smoothness: Positive | None
    final: Metrics
    versions: dict[str, str]
    python: str
    git_revision: str | None
    finished_at: str
    client_lr: Positive | None = None
    test: Metrics = {}
    convergence: Convergence | None = None

    required_files: ClassVar[tuple[str, ...]] = ("metrics.csv", "model.npz")

    def __post_init__(self) -> None:
        _require(self.run_id == self.identity.run, "run_id and identity.run differ")
        _require((self.status == "diverged") == (self.diverged_round is not None), "status and diverged_round differ")
        _require("objective" in self.final, "final has no 'objective'")
        texts = [*self.versions, *self.versions.values(), self.python, self.git_revision or ""]
        _require(all(text.isprintable() and len(text) <= 400 for text in texts), "versions must be lines of text")
        _require(datetime.fromisoformat(self.finished_at).tzinfo is not None, "finished_at has no time zone")


class Choice(msgspec.Struct, kw_only=True):
    """A chosen model of a path."""

    place: Count
    cv_loss: Number | None
    cv_error: Number | None
    nonzeros: Number | None
    rounds: Number | None
    kkt: Number | None
    strength: Number | None = None
    radius: Number | None = None
    rank: Number | None = None
    test: dict[str, Number | None] | None = None


class Choices(msgspec.Struct, kw_only=True):
    """Both models that a path chooses."""

    min: Choice
    one_standard_error: Choice = msgspec.field(name="1se")


class Stability(msgspec.Struct, kw_only=True):
    """Selection frequencies of the features at the place of a path up to which the bound holds."""

    place: Count
    threshold: float
    bound: float
    stable: list[Count]
    frequency: list[float]

    def __post_init__(self) -> None:
        _require(max(self.stable, default=-1) < len(self.frequency), "stable names a feature that is not there")


class PathResult(Result, kw_only=True):
    """Result of experiment=path."""

    status: Literal["finished"]
    kind: Literal["path"]
    task: Name
    regularizer: Name
    loss: Name
    dial: Literal["strength", "radius"]
    rows: Count
    clients: Count
    folds: Count
    by: str
    features: list[str] | None
    chosen: Choices
    at_the_end: bool
    not_converged: Count
    stability: Stability | None

    required_files: ClassVar[tuple[str, ...]] = (
        "path.csv",
        "path.npz",
        "clients.csv",
        "min/model.npz",
        "1se/model.npz",
    )

    def __post_init__(self) -> None:
        if self.stability is not None and self.features is not None:
            _require(len(self.features) == len(self.stability.frequency), "stability.frequency is not of its features")


class TheoryResult(Result, kw_only=True):
    """Result of experiment=theory."""

    status: Literal["finished"]
    cells: Count
    violated: dict[str, Count]
    identity_error: dict[str, float]
    table: list[list[str]]  # as it is printed, the header first
    seconds: NotNegative
    config: str

    required_files: ClassVar[tuple[str, ...]] = ("theory.md", "theory.png", "cells.csv")

    def __post_init__(self) -> None:
        _require(bool(self.table), "table is empty")
        header, *rows = self.table
        _require(len(header) >= 4 and all(len(row) == len(header) for row in rows), "table has rows of other lengths")
        _require(all(row[1].isdecimal() and row[2].isdecimal() for row in rows), "table has no counts of cells")


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)


def read_result(folder: Path, schema: type[Result]) -> dict[str, Any]:
    """Return the checked content of a folder's result.json."""
    path = folder / "result.json"
    plain = parse_json(read_bounded(path, LARGEST), path.name)
    try:
        converted(plain, schema, path.name)
    except BadRecord:
        if isinstance(plain, dict) and "config_hash" in plain:
            raise BadRecord("made by an older version; run it again") from None
        raise
    return plain


def check_complete(folder: Path, schema: type[Result], result: dict[str, Any]) -> None:
    """Raise BadRecord if a file that the result lists is missing or has another size."""
    sizes = result.get("files") or dict.fromkeys(schema.required_files)
    for name, expected in sizes.items():
        file = folder / name
        if not os.path.isfile(file):  # of a name that the system does not take, Path.is_file raises OSError
            raise BadRecord(one_printable_line(f"incomplete: {name} is missing"))
        if expected is not None and (size := file.stat().st_size) != expected:
            raise BadRecord(one_printable_line(f"incomplete: {name} has {size} bytes of {expected}"))


def listed_files(folder: Path, ignored: tuple[str, ...] = ()) -> dict[str, int | None]:
    """Return the sizes of a record's files by name: all but hidden ones, run.log, and those whose name begins with one
    of `ignored`. The size of config.yaml, which names folders of this machine, is left out: None."""
    found: dict[str, int | None] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts) or parts[0].startswith(
            ("run.log", "result.json", *ignored)
        )
        if path.is_file() and not hidden and ".corrupt-" not in path.name:
            found["/".join(parts)] = None if parts == ("config.yaml",) else path.stat().st_size
    return found
