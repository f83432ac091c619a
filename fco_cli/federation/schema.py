"""Schemas of the messages between the coordinator and the sites, one for every kind of request and response.

Messages are converted to their schema in one place on each side (`Site.handle`, `Sites._checked`), which refuses
unknown or missing keys, wrong types and values out of range. Arrays are declared by `message.ArraySpec`.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fco_cli.algorithms.rounds import MAX_FRACTION_BITS
from fco_cli.problem.losses import MAX_CLASSES

Count = Annotated[int, Meta(ge=0, lt=2**48)]
Rows = Annotated[int, Meta(ge=0, le=10**9)]  # rows of a site
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
RoundIndex = Annotated[int, Meta(ge=0, lt=2**31)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, lt=2**53)]  # sequence number of a request in its session
Outputs = Annotated[int, Meta(ge=1, le=MAX_CLASSES)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
AtLeastZero = Annotated[float, Meta(ge=0, le=1e300)]
Amount = Annotated[float, Meta(gt=0, le=1e100)]
Part = Literal["training", "held_out", "test"]  # of the rows
Token = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # of a session, or of a job
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
FullDigest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Key = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # public, of X25519
Share = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # of a secret, or a pad
Outcome = tuple[RoundIndex, list[Token]]  # a round, and the jobs in which the client's message was used


def _require_distinct(what: str, names: list[str] | None) -> None:
    if names is not None and len(set(names)) != len(names):
        raise ValueError(f"{what} must be distinct")


class Header(msgspec.Struct, kw_only=True):
    """Keys of every request."""

    session: Token
    number: Number


class Request(Header, kw_only=True, forbid_unknown_fields=True):
    """Request without other keys: `key`, `offer`."""


class Describe(Request, kw_only=True):
    """First request of a session; `analyst` is a declaration for the audit file."""

    analyst: Annotated[str, Meta(max_length=200)] = ""


class Offer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Offer of a site for one masked request: a public key, and shares of its secrets encrypted for each site."""

    serial: Number
    public: Key
    sealed: dict[str, Annotated[str, Meta(pattern=r"\A([0-9a-f]{96}|[0-9a-f]{32})\Z")]]


class Masked(Request, kw_only=True):
    """Request whose response may be masked, such as `count`: offers by site, and a digest of the agreed rows."""

    offers: dict[str, Offer] | None = None
    agreed: FullDigest | None = None


class DealHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Assignment of rows to folds (`folds.FoldAssignment`)."""

    folds: Annotated[int, Meta(ge=2, lt=2**31)]
    by: Literal["rows", "clients", "each_client"]
    classes: bool
    seed: Seed
    draw: Annotated[int, Meta(ge=0, lt=2**24)]


class Fold(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Held-out fold (`folds.HeldOut`)."""

    deal: DealHead
    number: RoundIndex

    def __post_init__(self) -> None:
        if self.number >= self.deal.folds:
            raise ValueError(f"fold {self.number} of {self.deal.folds} does not exist")


class Prepare(Request, kw_only=True):
    """Request to split the rows for a task."""

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


class Apply(Request, kw_only=True):
    """Request to prepare the rows; `preparation` is JSON, `rows` all sites' numbers of rows by part, if masked."""

    preparation: str
    outputs: Outputs
    start: Seed | None
    rows: dict[Part, dict[str, Annotated[int, Meta(ge=1, le=10**9)]]] | None = None


class Noise(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Clipping and noise of an evaluation: largest norm, a site's standard deviation, rows of all sites.

    If `by_row`, the norm and the deviation are those of a sum over the site's rows, before weighting.
    """

    most: Amount
    deviation: Amount
    rows: Amount
    by_row: bool = False


class Evaluate(Masked, kw_only=True):
    """Request to evaluate models on the rows of one part; `weights` by site, null: 1."""

    jobs: Positive
    part: Part
    gradient: bool
    weights: dict[str, Fraction] | None
    sums: bool
    spread: bool
    noise: Noise | None = None


class Curvature(Masked, kw_only=True):
    """Request for the largest curvature over batches."""

    seed: Seed
    batch_size: Positive


class Stack(Request, kw_only=True):
    """Request to start a stack of jobs."""

    stack: Count
    jobs: Positive
    algo: dict[str, Any]
    regularizer: dict[str, Any]
    mirror: dict[str, Any]
    transform: dict[str, Any]
    plugins: dict[str, str] = {}  # digests of the parts whose code is not in this package


class Forget(Request, kw_only=True):
    """Request to delete the client state of jobs."""

    tokens: list[Token]

    def __post_init__(self) -> None:
        _require_distinct("tokens", self.tokens)


class Load(Forget, kw_only=True):
    """Request to restore the client state of jobs as of a round."""

    stack: Count
    round: RoundIndex


class Own(Forget, kw_only=True):
    """Request to evaluate the personal models; `outcomes` by site."""

    stack: Count
    outcomes: dict[str, list[Outcome]]


class Save(Own, kw_only=True):
    """Request to save the client state of jobs."""

    round: RoundIndex


class Train(Own, kw_only=True):
    """Request for the client update of a round; `factors` by site and `noise`, per job, if masked."""

    round: RoundIndex
    seed: Seed
    batch_size: Positive
    local_epochs: Positive
    last_batch: Literal["keep", "drop", "straddle"]
    steps: Positive | None
    factors: dict[str, list[AtLeastZero]] | None = None
    noise: list[AtLeastZero] | None = None
    offers: dict[str, Offer] | None = None  # as in `Masked`
    agreed: FullDigest | None = None


class SignedKey(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Signed mask key of a site for one session."""

    key: Key
    signature: Annotated[str, Meta(pattern=r"\A[0-9a-f]{2,4096}\Z")]
    certificate: Annotated[str, Meta(max_length=2**16)]


class Keys(Request, kw_only=True):
    """Request to use these mask keys; every sum needs `needed` of the sites."""

    keys: dict[str, SignedKey]
    needed: Positive
    bits: Annotated[int, Meta(ge=8, le=MAX_FRACTION_BITS)]


class Unmask(Request, kw_only=True):
    """Request to unmask the sum of the survivors' responses; `shares`: also with shares of their self-masks."""

    request: Number
    survivors: Annotated[list[str], Meta(min_length=1)]
    shares: bool

    def __post_init__(self) -> None:
        _require_distinct("survivors", self.survivors)


REQUESTS: dict[str, type[Request]] = {
    "describe": Describe, "prepare": Prepare, "count": Masked, "apply": Apply, "evaluate": Evaluate,
    "curvature": Curvature, "stack": Stack, "train": Train, "own": Own, "key": Request, "keys": Keys,
    "offer": Request, "unmask": Unmask, "save": Save, "load": Load, "forget": Forget,
}  # fmt: skip


class Response(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Response without other keys."""

    number: Number


class Refused(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Refusal of a request, with its reason; number 0 if the request has no valid number."""

    number: Annotated[int, Meta(ge=0, lt=2**53)]
    reason: Annotated[str, Meta(max_length=2**12)]


class Software(msgspec.Struct, kw_only=True):
    """Version of the site's software; other keys are read only if it matches."""

    version: Annotated[str, Meta(max_length=256)]
    code: Digest


class Description(Response, kw_only=True):
    """Description of the site's software and rows."""

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
    """Return a digest of the features' names, to compare sites."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


class SummaryHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Counts and moments of the training rows by column (`summary.Summary`).

    `low` and `high` are null in columns without numbers, such as categorical ones.
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
                raise ValueError("low and high must be numbers where count is above 0, null otherwise")
            if low is not None and high is not None and not _is_between(low, mean, high):
                raise ValueError("mean must be between low and high")
        if not self.categories.keys() <= set(self.columns):
            raise ValueError("categories of an unknown column")


def _is_between(low: float, mean: float, high: float) -> bool:
    """Return True if low <= mean <= high up to rounding errors."""
    slack = 1e-6 * max(abs(low), abs(high))
    return low <= high and math.isfinite(slack) and low - slack <= mean <= high + slack


class RowCounts(Response, kw_only=True):
    """Numbers of rows of every part, scores per row, and a summary of the training rows."""

    training: Rows
    held_out: Rows
    test: Rows
    outputs: Outputs
    summary: SummaryHead | None


class Known(Response, kw_only=True):
    """Response to `load`: true if the client state of that round was restored."""

    known: bool


class KeyResponse(Response, kw_only=True):
    """Response to `key`: the site's mask key."""

    key: SignedKey


class OfferResponse(Response, kw_only=True):
    """Response to `keys` and `offer`: the site's next offer."""

    offer: Offer


class Opening(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Padded seed of a site's self-mask, its pads for the other survivors' seeds, and shares."""

    seed: Share
    pads: dict[str, Share]
    key_shares: dict[str, Share]  # of the missing sites
    seed_shares: dict[str, Share]  # of the survivors, if requested


class MaskedResponse(Response, kw_only=True):
    """Response to a request of `masks.MASKED_KINDS`; if masked, with the next offer and possibly with the opening."""

    offer: Offer | None = None
    opened: Opening | None = None


class Unmasked(Response, kw_only=True):
    """Response to `unmask`."""

    opened: Opening


RESPONSES: dict[str, type[Response]] = dict.fromkeys(REQUESTS, Response) | {
    "describe": Description, "prepare": RowCounts, "load": Known, "key": KeyResponse, "keys": OfferResponse,
    "offer": OfferResponse, "unmask": Unmasked, "train": MaskedResponse, "evaluate": MaskedResponse,
    "count": MaskedResponse, "curvature": MaskedResponse,
}  # fmt: skip
