"""Schemas and reader of result.json, for runs, paths, inference and the theory experiment.

Keys with a default are absent from records of earlier versions.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from fco_cli.typed_files import BadRecord, converted, one_printable_line, parse_json, read_bounded

LARGEST = 256 << 20  # bytes; that of a path lists its features

NETWORK = ("participation", "time_model", "aggregation")  # configuration groups of the simulated network
SIMULATED_SECONDS = "simulated_seconds"  # column of metrics.csv, with a time model

Count = Annotated[int, Meta(ge=0, le=10**12)]
Seed = Annotated[int, Meta(ge=0)]
Number = int | float
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
NotNegative = Annotated[float, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{8,64}\Z")]
# Part of file names: no separators and no leading dot.
Name = Annotated[str, Meta(pattern=r"\A\w[\w.-]{0,79}\Z")]
METRIC = r"\A\w[\w.()@=-]{0,79}\Z"
Metric = Annotated[str, Meta(pattern=METRIC)]
Metrics = dict[Metric, Number | None]  # null: not finite


class Result(msgspec.Struct, kw_only=True):
    """Keys that every result has."""

    status: Literal["finished", "diverged"]
    files: dict[str, Count | None] | None = None  # sizes of the other files in bytes; null: any size

    required_files: ClassVar[tuple[str, ...]] = ()  # checked if `files` is absent


class RunIdentity(msgspec.Struct, kw_only=True):
    """Digests that define which runs are comparable."""

    family: Digest
    problem: Digest
    run: Digest


class Convergence(msgspec.Struct, kw_only=True):
    """Verdict on a finished run."""

    converged: bool
    line: str


class UpdateWeights(msgspec.Struct, kw_only=True):
    """Weights of clients in the updates of a run, relative to those in the objective."""

    least: NotNegative
    largest: NotNegative
    without_messages: Count
    biased: bool
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
    missing: dict[Count, list[Name]] = {}  # by round, the sites whose message did not arrive
    updates: UpdateWeights | None = None  # absent if all sampled clients respond
    plugins: dict[str, str] = {}  # path and SHA-256 of the files that were loaded for the run

    required_files: ClassVar[tuple[str, ...]] = ("metrics.csv", "model.npz")

    def __post_init__(self) -> None:
        _require(self.run_id == self.identity.run, "run_id and identity.run differ")
        _require((self.status == "diverged") == (self.diverged_round is not None), "status and diverged_round differ")
        _require("objective" in self.final, "final has no 'objective'")
        texts = [*self.versions, *self.versions.values(), self.python, self.git_revision or ""]
        _require(all(text.isprintable() and len(text) <= 400 for text in texts), "versions must be lines of text")
        is_digest = all(re.fullmatch("[0-9a-f]{64}", digest) for digest in self.plugins.values())
        _require(is_digest and all(map(str.isprintable, self.plugins)), "plugins must be paths with SHA-256 digests")
        _require(datetime.fromisoformat(self.finished_at).tzinfo is not None, "finished_at has no time zone")


class Choice(msgspec.Struct, kw_only=True):
    """Selected model of a path."""

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
    """Both selected models of a path."""

    min: Choice
    one_standard_error: Choice = msgspec.field(name="1se")


class Stability(msgspec.Struct, kw_only=True):
    """Selection frequencies of the features at the last position of a path for which the bound holds."""

    place: Count
    threshold: float
    bound: float
    stable: list[Count]
    frequency: list[float]

    def __post_init__(self) -> None:
        _require(max(self.stable, default=-1) < len(self.frequency), "stable has an index without a frequency")


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
    card: list[tuple[str, str, str]] = []  # section, item and text of the model card

    required_files: ClassVar[tuple[str, ...]] = (
        "path.csv",
        "path.npz",
        "clients.csv",
        "min/model.npz",
        "1se/model.npz",
    )

    def __post_init__(self) -> None:
        if self.stability is not None and self.features is not None:
            is_complete = len(self.features) == len(self.stability.frequency)
            _require(is_complete, "stability.frequency and features differ in length")


class Coefficient(msgspec.Struct, kw_only=True):
    """Line of the table of coefficients; null: not finite."""

    coefficient: str
    estimate: Number | None
    error: Number | None
    statistic: Number | None
    p: Number | None
    low: Number | None
    high: Number | None
    ratio: Number | None = None
    ratio_low: Number | None = None
    ratio_high: Number | None = None


class PooledCoefficient(msgspec.Struct, kw_only=True):
    """Line of a meta-analysis."""

    coefficient: str
    fixed: Number | None
    fixed_error: Number | None
    reml: Number | None
    reml_error: Number | None
    reml_tau2: Number | None
    q_p: Number | None
    i2: Number | None


class TermTest(msgspec.Struct, kw_only=True):
    """Test of a column of the table."""

    term: str
    statistic: Number | None
    numerator: Count
    denominator: Count | None
    p: Number | None


class GlmResult(Result, kw_only=True):
    """Result of experiment=glm."""

    status: Literal["finished"]
    kind: Literal["glm"]
    task: Name
    regularizer: Name
    loss: Name
    method: Literal["wald", "debiased"]
    covariance: Name
    level: Annotated[float, Meta(gt=0, lt=1)]
    degrees: Count | None
    rows: Count
    clients: Count
    coefficients: list[Coefficient]
    terms: list[TermTest]
    meta: list[PooledCoefficient]
    notes: list[str]
    clients_without_fit: dict[str, str] = {}
    units: dict[str, Positive] = {}  # of the plot of coefficients; 1 if absent
    card: list[tuple[str, str, str]] = []  # section, item and text of the model card

    required_files: ClassVar[tuple[str, ...]] = ("coefficients.csv", "covariance.npz")


class Table1Line(msgspec.Struct, kw_only=True):
    """Line of table 1; cells are text, without suppressed numbers."""

    column: str
    statistic: str
    cells: list[str]
    smd: Number | None
    p: Number | None


class Table1Result(Result, kw_only=True):
    """Result of experiment=table1."""

    status: Literal["finished"]
    kind: Literal["table1"]
    task: Name
    rows: Count
    clients: Count
    min_cell: Count
    smd: bool
    p: bool
    heads: list[str]
    lines: list[Table1Line]
    notes: list[str]

    required_files: ClassVar[tuple[str, ...]] = ("table1.csv",)

    def __post_init__(self) -> None:
        _require(all(len(line.cells) == len(self.heads) for line in self.lines), "lines have different lengths")


class TheoryResult(Result, kw_only=True):
    """Result of experiment=theory."""

    status: Literal["finished"]
    cells: Count
    violated: dict[str, Count]
    identity_error: dict[str, float]
    table: list[list[str]]  # as printed, header first
    seconds: NotNegative
    config: str

    required_files: ClassVar[tuple[str, ...]] = ("theory.md", "theory.png", "cells.csv")

    def __post_init__(self) -> None:
        _require(bool(self.table), "table is empty")
        header, *rows = self.table
        _require(
            len(header) >= 4 and all(len(row) == len(header) for row in rows), "table has rows of different lengths"
        )
        _require(all(row[1].isdecimal() and row[2].isdecimal() for row in rows), "table has no numbers of cells")


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ValueError(fault)


def read_result(folder: Path, schema: type[Result]) -> dict[str, Any]:
    """Return the validated content of a folder's result.json; raise BadRecord if it is invalid."""
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
        if not os.path.isfile(file):  # Path.is_file raises OSError for invalid names
            raise BadRecord(one_printable_line(f"incomplete: {name} is missing"))
        if expected is not None and (size := file.stat().st_size) != expected:
            raise BadRecord(one_printable_line(f"incomplete: {name} has {size} bytes of {expected}"))


def listed_files(folder: Path, ignored: tuple[str, ...] = ()) -> dict[str, int | None]:
    """Return the sizes of a record's files by name, except hidden files, run.log and names that begin with `ignored`.

    The size of config.yaml is None, since it contains paths of this machine.
    """
    sizes: dict[str, int | None] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_ignored = any(part.startswith(".") for part in parts) or parts[0].startswith(
            ("run.log", "result.json", *ignored)
        )
        if path.is_file() and not is_ignored and ".corrupt-" not in path.name:
            sizes["/".join(parts)] = None if parts == ("config.yaml",) else path.stat().st_size
    return sizes
