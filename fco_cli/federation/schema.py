"""Schemas of all messages between the coordinator and the sites: one for every kind of question and of answer.

A message is converted to its schema at its only reader (`Site.answer`, `Sites._checked`), which refuses unknown or
missing keys, other types and values out of range. Code that knows an array's size declares it (`message.ArraySpec`).
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fco_cli.algorithms.fixed_point import MOST_BITS
from fco_cli.problem.losses import MAX_CLASSES

Count = Annotated[int, Meta(ge=0, lt=2**48)]
Rows = Annotated[int, Meta(ge=0, le=10**9)]  # of a site
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
RoundIndex = Annotated[int, Meta(ge=0, lt=2**31)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, lt=2**53)]  # of a question in its session
Outputs = Annotated[int, Meta(ge=1, le=MAX_CLASSES)]
Share = Annotated[float, Meta(ge=0, le=1)]
AtLeastZero = Annotated[float, Meta(ge=0, le=1e300)]
Amount = Annotated[float, Meta(gt=0, le=1e100)]
Token = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # of a session, or of a job
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
Outcome = tuple[RoundIndex, list[Token]]  # a round, and the jobs in which the client's message was used


def _require_distinct(what: str, names: list[str] | None) -> None:
    if names is not None and len(set(names)) != len(names):
        raise ValueError(f"{what} must be distinct")


class Header(msgspec.Struct, kw_only=True):
    """What every question has."""

    session: Token
    number: Number


class Question(Header, kw_only=True, forbid_unknown_fields=True):
    """A question without other keys: `describe`, `count`, `key`."""


class DealHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Assignment of rows to folds (`folds.Deal`)."""

    folds: Annotated[int, Meta(ge=2, lt=2**31)]
    by: Literal["rows", "clients", "each_client"]
    classes: bool
    seed: Seed
    draw: Annotated[int, Meta(ge=0, lt=2**24)]


class Fold(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fold that is held out (`folds.HeldOut`)."""

    deal: DealHead
    number: RoundIndex

    def __post_init__(self) -> None:
        if self.number >= self.deal.folds:
            raise ValueError(f"fold {self.number} of {self.deal.folds} does not exist")


class Prepare(Question, kw_only=True):
    """Split the rows for a task."""

    task: dict[str, Any]
    sites: Annotated[list[str], Meta(min_length=1)]
    seed: Seed
    dtype: Literal["float64", "float32"]
    classes: Annotated[list[str], Meta(min_length=1, max_length=MAX_CLASSES)] | None
    summary: bool
    fold: Fold | None = None

    def __post_init__(self) -> None:
        _require_distinct("sites", self.sites)
        _require_distinct("classes", self.classes)


class Apply(Question, kw_only=True):
    """Prepare the rows as agreed; `preparation` is JSON."""

    preparation: str
    outputs: Outputs
    start: Seed | None


class Noise(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Clipping and noise of an evaluation: largest norm, a site's standard deviation, rows of all sites."""

    most: Amount
    deviation: Amount
    rows: Amount


class Evaluate(Question, kw_only=True):
    """Evaluate models on the rows of one part; `weights` by site, null: 1."""

    jobs: Positive
    part: Literal["training", "held_out", "test"]
    gradient: bool
    weights: dict[str, Share] | None
    sums: bool
    spread: bool
    noise: Noise | None = None


class Curvature(Question, kw_only=True):
    """Return the largest curvature over batches."""

    seed: Seed
    batch_size: Positive


class Stack(Question, kw_only=True):
    """Start a stack of jobs."""

    stack: Count
    jobs: Positive
    algo: dict[str, Any]
    regularizer: dict[str, Any]
    mirror: dict[str, Any]
    transform: dict[str, Any]


class Forget(Question, kw_only=True):
    """Delete the memory of jobs."""

    tokens: list[Token]

    def __post_init__(self) -> None:
        _require_distinct("tokens", self.tokens)


class Load(Forget, kw_only=True):
    """Restore the memory of jobs as of a round."""

    stack: Count
    round: RoundIndex


class Own(Forget, kw_only=True):
    """Evaluate the client's own models; `outcomes` by site."""

    stack: Count
    outcomes: dict[str, list[Outcome]]


class Save(Own, kw_only=True):
    """Store the memory of jobs."""

    round: RoundIndex


class Train(Own, kw_only=True):
    """Run the client's part of a round; `factors` by site and `noise`, for every job, if answers are masked."""

    round: RoundIndex
    seed: Seed
    batch_size: Positive
    local_epochs: Positive
    last_batch: Literal["keep", "drop", "straddle"]
    steps: Positive | None
    factors: dict[str, list[AtLeastZero]] | None = None
    noise: list[AtLeastZero] | None = None


class SignedKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A site's mask key for one session."""

    key: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    signature: Annotated[str, Meta(pattern=r"\A[0-9a-f]{2,4096}\Z")]
    certificate: Annotated[str, Meta(max_length=2**16)]


class Keys(Question, kw_only=True):
    """Use these mask keys."""

    keys: dict[str, SignedKey]
    bits: Annotated[int, Meta(ge=8, le=MOST_BITS)]


QUESTIONS: dict[str, type[Question]] = {
    "describe": Question, "prepare": Prepare, "count": Question, "apply": Apply, "evaluate": Evaluate,
    "curvature": Curvature, "stack": Stack, "train": Train, "own": Own, "key": Question, "keys": Keys, "save": Save,
    "load": Load, "forget": Forget,
}  # fmt: skip


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer without other keys."""

    number: Number


class Refused(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reason why a question was not answered; number 0 if the question has no valid one."""

    number: Annotated[int, Meta(ge=0, lt=2**53)]
    reason: Annotated[str, Meta(max_length=2**12)]


class Software(msgspec.Struct, kw_only=True):
    """The site's version, the only keys that are read if it differs."""

    version: Annotated[str, Meta(max_length=256)]
    code: Digest


class Description(Answer, kw_only=True):
    """The site's software and rows."""

    version: str
    code: Digest
    digest: Digest
    features: Annotated[int, Meta(ge=1, lt=2**31)]
    names_digest: Digest
    names: list[str] | None
    classes: Annotated[list[str], Meta(min_length=1, max_length=MAX_CLASSES)] | None
    split: list[Literal["train", "val", "test"]]

    def __post_init__(self) -> None:
        _require_distinct("split", self.split)  # type: ignore[arg-type]
        _require_distinct("names", self.names)
        _require_distinct("classes", self.classes)
        if self.names is not None and (len(self.names), names_digest(self.names)) != (self.features, self.names_digest):
            raise ValueError("names do not match features and names_digest")


def names_digest(names: list[str]) -> str:
    """Return the digest by which sites compare the features' names."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


class SummaryHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Counts and moments of the training rows by column (`summary.Summary`); `low` and `high` are null without numbers.

    A column with categories has no numbers.
    """

    client: str
    rows: Annotated[int, Meta(ge=1, lt=2**48)]
    columns: Annotated[list[str], Meta(min_length=1)]
    categories: dict[str, dict[str, Annotated[int, Meta(ge=1, lt=2**48)]]]
    count: list[Count]
    mean: list[float]
    deviations: list[Annotated[float, Meta(ge=0)]]
    low: list[float | None]
    high: list[float | None]

    def __post_init__(self) -> None:
        _require_distinct("columns", self.columns)
        by_column = (self.count, self.mean, self.deviations, self.low, self.high)
        if {len(values) for values in by_column} != {len(self.columns)}:
            raise ValueError("count, mean, deviations, low and high must have a value for every column")
        for column, count, mean, _, low, high in zip(self.columns, *by_column, strict=True):
            if count + sum(self.categories.get(column, {}).values()) > self.rows:
                raise ValueError("a column has more values than rows")
            if count and column in self.categories:
                raise ValueError("a column has numbers and categories")
            if (low is None or high is None) != (count == 0) or (low is None) != (high is None):
                raise ValueError("low and high must be numbers where count is above 0, null elsewhere")
            if low is not None and high is not None and not _is_between(low, mean, high):
                raise ValueError("mean must be between low and high")
        if not self.categories.keys() <= set(self.columns):
            raise ValueError("categories of an unknown column")


def _is_between(low: float, mean: float, high: float) -> bool:
    """True up to the rounding of a sum."""
    slack = 1e-6 * max(abs(low), abs(high))
    return low <= high and math.isfinite(slack) and low - slack <= mean <= high + slack


class RowCounts(Answer, kw_only=True):
    """Rows of every part, scores per row, and a summary of the training rows."""

    training: Rows
    held_out: Rows
    test: Rows
    outputs: Outputs
    summary: SummaryHead | None


class Known(Answer, kw_only=True):
    """True if the memory of that round was restored."""

    known: bool


class KeyAnswer(Answer, kw_only=True):
    """The site's own mask key."""

    key: SignedKey


ANSWERS: dict[str, type[Answer]] = dict.fromkeys(QUESTIONS, Answer) | {
    "describe": Description, "prepare": RowCounts, "load": Known, "key": KeyAnswer,
}  # fmt: skip
