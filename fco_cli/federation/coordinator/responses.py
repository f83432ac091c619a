"""Responses of the sites to one evaluation, or their masked sum, with a common interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.masked import MaskedSum
from fco_cli.federation.coordinator.sites import Response
from fco_cli.federation.message import ArraySpec, BadMessage
from fco_cli.problem.layout import Array
from fco_cli.problem.risk import ordered_sum

Specs = Mapping[str, ArraySpec]


@dataclass(frozen=True)
class SiteMetrics:
    """Metrics of models [J] on one site's rows of one part."""

    site: str | None  # None: all sites together, if responses are masked
    rows: int
    loss: Array  # [J], mean over the rows
    squares: Array | None  # [J], mean squared loss of a row; None if not shared, or the loss is not a sum over rows
    hits: Array | None  # [J], correctly classified rows; None for regression or if a site does not share them
    sums: Array | None  # [J, k], for the loss's metrics (metrics.py); None if not shared


@dataclass(frozen=True)
class Responses:
    """Responses of the sites to one evaluation."""

    by_site: dict[str, Response]

    @property
    def present(self) -> list[str]:
        """Sites that answered."""
        return list(self.by_site)

    def all_have(self, name: str) -> bool:
        return all(name in response.arrays for response in self.by_site.values())

    def array(self, name: str) -> Array:
        """Return an array [M, ...] with one entry per site."""
        return np.stack([response.arrays[name] for response in self.by_site.values()])

    def take(self, jobs: list[int]) -> Responses:
        """Return the responses about some of the models."""
        return Responses({
            name: Response(one.head, {array: values[jobs] for array, values in one.arrays.items()})
            for name, one in self.by_site.items()
        })  # fmt: skip


@dataclass(frozen=True)
class SumOfResponses:
    """Sum of the sites' masked responses, with the interface of `Responses`."""

    masked: MaskedSum
    bits: int
    sum_specs: Specs

    @property
    def present(self) -> list[str]:
        return self.masked.present

    def all_have(self, name: str) -> bool:
        return name in self.masked.totals

    def array(self, name: str) -> Array:
        """Return the sum as one entry [1, ...]; NaN for jobs with a number out of the fixed-point range."""
        total = from_fixed_point(self.masked.totals[name], self.bits)
        fits = self.masked.fits[: len(total)]
        if name in self.sum_specs:
            with report_invalid_sum(self.present):
                replace(self.sum_specs[name], shape=total[fits].shape).checked(name, total[fits])
        return np.where(fits.reshape(-1, *[1] * (total.ndim - 1)), total, np.nan)[None]

    def take(self, jobs: list[int]) -> SumOfResponses:
        totals = {name: values[jobs] for name, values in self.masked.totals.items()}
        specs = {name: replace(spec, shape=(len(jobs), *spec.shape[1:])) for name, spec in self.sum_specs.items()}
        return SumOfResponses(MaskedSum(totals, self.present, self.masked.fits[jobs]), self.bits, specs)


AnyResponses = Responses | SumOfResponses


class Known(NamedTuple):
    """Evaluation of one model: the responses that it is part of, its job, and whether metrics were requested."""

    responses: AnyResponses
    job: int
    weights: Array  # of the sites
    sums: bool
    spread: bool


@contextmanager
def report_invalid_sum(sites: Iterable[str], kind: str = "evaluate") -> Iterator[None]:
    """Convert BadMessage about a masked sum to a UserError; it names all sites, as the faulty one is unknown."""
    try:
        yield
    except BadMessage as problem:
        names = ", ".join(sites)
        raise UserError(f"sites {names}: invalid response to {kind!r}: in the masked sum {problem}") from problem


def sum_in(dtype: Any, parts: Array) -> Array:
    """Return the sum over the first axis in the order of the sites, with partial sums of that type."""
    if dtype == np.dtype(float):
        return ordered_sum(parts)
    total = np.zeros(parts.shape[1:], dtype)
    for part in parts.astype(dtype):
        total += part
    return total.astype(float)
