"""Schemas of the responses of the sites, one for every kind of request (`schema.py`)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fco_cli.federation.message import names_digest
from fco_cli.federation.schema import (
    REQUESTS,
    CategoryNames,
    CellCount,
    Digest,
    Number,
    Offer,
    Outputs,
    Rows,
    Share,
    SignedKey,
    require_distinct,
)
from fco_cli.problem.losses import MAX_CLASSES


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
        require_distinct("split", self.split)
        require_distinct("names", self.names)
        require_distinct("classes", self.classes)
        if self.names is not None and (len(self.names), names_digest(self.names)) != (self.features, self.names_digest):
            raise ValueError("names do not match features and names_digest")


class SummaryHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Counts and moments of the training rows by column (`summary.Summary`).

    `low` and `high` are null in columns without numbers, such as categorical ones.
    """

    client: str
    rows: Annotated[int, Meta(ge=1, lt=2**48)]
    columns: Annotated[list[str], Meta(min_length=1)]
    categories: dict[str, dict[str, Annotated[int, Meta(ge=1, lt=2**48)]]]
    count: list[CellCount]
    mean: list[float]
    deviations: list[Annotated[float, Meta(ge=0)]]
    low: list[float | None]
    high: list[float | None]

    def __post_init__(self) -> None:
        require_distinct("columns", self.columns)
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


class RowCounts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Numbers of rows of one fit by part, and a summary of the training rows or names of categories.

    `max_parameters` is the largest number of parameters of a Hessian that the site sends; null: no limit. `events` is
    the number of events among the held-out rows; null: not shared, or the labels are not times.
    """

    training: Rows
    held_out: Rows
    test: Rows
    summary: SummaryHead | None
    categories: CategoryNames | None
    max_parameters: Annotated[int, Meta(ge=0, lt=2**48)] | None
    events: Rows | None = None


class SplitRows(Response, kw_only=True):
    """Response to `prepare`: the rows of every fit, and scores per row.

    `estimates` is true if the site takes part in fits of its rows alone, `tables` if it sends risk tables of its times,
    with cells of at least `min_cell` events.
    """

    fits: Annotated[list[RowCounts], Meta(min_length=1)]
    outputs: Outputs
    estimates: bool = False
    tables: bool = False
    min_cell: Annotated[int, Meta(ge=1, lt=2**31)] = 1


class TermsResponse(Response, kw_only=True):
    """Response to `terms`."""

    summary: SummaryHead


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
    """Shares of the survivors' self-masks and of the missing sites' pairwise keys."""

    seed_shares: dict[str, Share]
    key_shares: dict[str, Share]


class MaskedResponse(Response, kw_only=True):
    """Response to a request of `masks.MASKED_KINDS`; if masked, with the next offer."""

    offer: Offer | None = None


class Unmasked(Response, kw_only=True):
    """Response to `unmask`."""

    opened: Opening


RESPONSES: dict[str, type[Response]] = dict.fromkeys(REQUESTS, Response) | {
    "describe": Description, "prepare": SplitRows, "load": Known,
    "terms": TermsResponse, "key": KeyResponse, "keys": OfferResponse,
    "offer": OfferResponse, "unmask": Unmasked, "train": MaskedResponse, "evaluate": MaskedResponse,
    "survival": MaskedResponse,
    "count": MaskedResponse, "hessian": MaskedResponse, "smoothness": MaskedResponse, "summarize": MaskedResponse,
}  # fmt: skip
