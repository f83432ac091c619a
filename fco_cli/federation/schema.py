"""Schemas of the requests of the coordinator, one for every kind; those of the responses are in `response_schema.py`.

Messages are converted to their schema in one place on each side (`Site.handle`, `Sites._checked`), which refuses
unknown or missing keys, wrong types and values out of range. Arrays are declared by `message.ArraySpec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fco_cli.algorithms.rounds import MAX_FRACTION_BITS
from fco_cli.problem.losses import MAX_CLASSES

StackNumber = Annotated[int, Meta(ge=0, lt=2**48)]
CellCount = Annotated[int, Meta(ge=0, lt=2**48)]
Rows = Annotated[int, Meta(ge=0, le=10**9)]  # rows of a site
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
RoundIndex = Annotated[int, Meta(ge=0, lt=2**31)]
FitIndex = Annotated[int, Meta(ge=0, lt=2**16)]  # of a fit in the last `prepare`; arrays of its models end with it
Column = Annotated[int, Meta(ge=0, lt=2**31)]  # index of a parameter
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
CategoryNames = dict[str, Annotated[list[str], Meta(min_length=1)]]  # by column
Outcome = tuple[RoundIndex, list[Token]]  # a round, and the jobs in which the client's message was used


def require_distinct(what: str, names: Sequence[Any] | None) -> None:
    """Raise ValueError if a list has equal entries."""
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
    """Request whose response may be masked: offers by site, and a digest of the agreed rows."""

    offers: dict[str, Offer] | None = None
    agreed: FullDigest | None = None


class FitTerms(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Terms of a formula in one fit: a preparation as JSON."""

    fit: FitIndex
    preparation: str


class Terms(Request, kw_only=True):
    """Request for the summary of the terms of a formula over the training rows of one fit."""

    terms: FitTerms


class Summarize(Masked, kw_only=True):
    """Request for sums of the training rows' columns (`exact_sums.column_sums`), with every fit's categories.

    With `terms`, for those of the terms of one fit by a preparation.
    """

    categories: list[CategoryNames]
    terms: FitTerms | None = None

    def __post_init__(self) -> None:
        for fit in self.categories:
            for names in fit.values():
                require_distinct("categories", names)


class Count(Masked, kw_only=True):
    """Request for cumulative counts of the columns' values of some fits, or of the values of the terms of one."""

    fits: Annotated[list[FitIndex], Meta(min_length=1)]
    terms: FitTerms | None = None

    def __post_init__(self) -> None:
        require_distinct("fits", self.fits)
        if self.terms is not None and self.fits != [self.terms.fit]:
            raise ValueError("terms: are those of one fit")


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
    """Request to split the rows for a task into the fits of a run, one per entry of `folds`; null holds out nothing.

    `summary`: the rows need a preparation, for which the site sends its own statistics or, if `exact`, names of
    categories only; `summarize` then requests the sums.
    """

    task: dict[str, Any]
    sites: Annotated[list[str], Meta(min_length=1)]
    seed: Seed
    dtype: Literal["float64", "float32"]
    classes: Annotated[list[str], Meta(min_length=1, max_length=MAX_CLASSES)] | None
    summary: bool
    exact: bool = False
    folds: Annotated[list[Fold | None], Meta(min_length=1, max_length=2**12)]
    keeps_offset: bool = False  # the offset is an additional last feature

    def __post_init__(self) -> None:
        require_distinct("sites", self.sites)
        require_distinct("classes", self.classes)


class NoisyMoments(Request, kw_only=True):
    """Request for noisy sums of the training rows' features, scaled by a preparation (`ranges.clipped_sums`)."""

    fit: FitIndex
    preparation: str
    noise: Amount


class Apply(Request, kw_only=True):
    """Request to prepare the rows of every fit.

    `preparations` are JSON; `rows` are all sites' numbers of rows by part, if masked.
    """

    preparations: list[str]
    outputs: Outputs
    start: Seed | None
    rows: list[dict[Part, dict[str, Annotated[int, Meta(ge=1, le=10**9)]]]] | None = None


class Noise(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Clipping and noise of an evaluation: largest norm, a site's standard deviation, rows of all sites.

    If `by_row`, the norm and the deviation are those of a sum over the site's rows, before weighting; the noise is that
    of `shares` sites together.
    """

    most: Amount
    deviation: Amount
    rows: Amount
    by_row: bool = False
    shares: Positive = 1


class FitModels(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Models of one fit in a request; `weights` by site, null: 1."""

    fit: FitIndex
    jobs: Positive
    weights: dict[str, Fraction] | None


class EvaluatedModels(FitModels, kw_only=True):
    """Models of one fit whose loss is evaluated."""

    noise: Noise | None = None


class Scores(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Outer products of gradients, times 2^exponent: their sum over rows and, if `clients`, that of the site's sum."""

    clients: bool
    exponent: Annotated[int, Meta(ge=0, le=62)]


class CurvedModels(FitModels, kw_only=True):
    """Models of one fit whose loss and gradient are evaluated, the Hessian at the first `hessians` of them.

    `columns` are indices of the parameters to which the Hessians are restricted; null: all. `narrow`: the gradients
    are restricted as well; all other parameters are 0, and the last column is the bias. `scores` needs one Hessian.
    """

    hessians: Annotated[int, Meta(ge=0, lt=2**31)]
    columns: Annotated[list[Column], Meta(min_length=1)] | None = None
    narrow: bool = False
    scores: Scores | None = None

    def __post_init__(self) -> None:
        if self.scores is not None and self.hessians != 1:
            raise ValueError("scores: need one model with a Hessian")
        if self.hessians > self.jobs:
            raise ValueError(f"hessians: must be from 0 to {self.jobs}, the number of models")
        if self.columns is not None and sorted(set(self.columns)) != self.columns:
            raise ValueError("columns: must be sorted and distinct")
        if self.narrow and (self.columns is None or self.scores is not None):
            raise ValueError("narrow: needs columns and no scores")


class Evaluate(Masked, kw_only=True):
    """Request to evaluate models of some fits on the rows of one part.

    `differences`: losses of held-out rows are those of all rows without those of the training rows.
    """

    fits: Annotated[list[EvaluatedModels], Meta(min_length=1)]
    part: Part
    gradient: bool
    sums: bool
    spread: bool
    differences: bool = False

    def __post_init__(self) -> None:
        require_distinct("fits", [one.fit for one in self.fits])
        if self.differences and (self.part != "held_out" or any(one.noise is not None for one in self.fits)):
            raise ValueError("differences: are losses of held-out rows without noise")


class Hessian(Masked, kw_only=True):
    """Request for the loss, the gradient and the Hessian on the training rows at models of some fits."""

    fits: Annotated[list[CurvedModels], Meta(min_length=1)]

    def __post_init__(self) -> None:
        require_distinct("fits", [one.fit for one in self.fits])


class RiskTable(Request, kw_only=True):
    """Request for the risk table of the training rows, with times coarsened to cells of `min_cell` events.

    With a `horizon`, also for groups of the risk until then.
    """

    fit: FitIndex
    min_cell: Positive
    horizon: Amount | None = None


class Survival(Masked, kw_only=True):
    """Request for numbers of pairs of the training rows, divided by powers of two, or for sums of tests.

    The tests are about the parameters `columns`, with given g(t); null: the numbers of pairs.
    """

    fit: FitIndex
    min_cell: Positive
    exponent: Annotated[int, Meta(ge=0, le=62)]
    columns: Annotated[list[Column], Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        if self.columns is not None and sorted(set(self.columns)) != self.columns:
            raise ValueError("columns: must be sorted and distinct")


class Smoothness(Masked, kw_only=True):
    """Request for the largest eigenvalue of the Hessians of batches, for step sizes."""

    fit: FitIndex
    seed: Seed
    batch_size: Positive


class Stack(Request, kw_only=True):
    """Request to start a stack of jobs on the rows of a fit."""

    fit: FitIndex
    stack: StackNumber
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
        require_distinct("tokens", self.tokens)


class Load(Forget, kw_only=True):
    """Request to restore the client state of jobs as of a round."""

    stack: StackNumber
    round: RoundIndex


class Own(Forget, kw_only=True):
    """Request to evaluate the personal models; `outcomes` by site."""

    stack: StackNumber
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
    """Request to unmask the sum of the survivors' responses."""

    request: Number
    survivors: Annotated[list[str], Meta(min_length=1)]

    def __post_init__(self) -> None:
        require_distinct("survivors", self.survivors)


REQUESTS: dict[str, type[Request]] = {
    "describe": Describe, "prepare": Prepare, "summarize": Summarize, "count": Count,
    "terms": Terms, "moments": NoisyMoments, "apply": Apply,
    "evaluate": Evaluate, "hessian": Hessian, "smoothness": Smoothness,
    "risk_table": RiskTable, "survival": Survival, "stack": Stack, "train": Train,
    "own": Own, "key": Request, "keys": Keys, "offer": Request, "unmask": Unmask, "save": Save,
    "load": Load, "forget": Forget,
}  # fmt: skip
