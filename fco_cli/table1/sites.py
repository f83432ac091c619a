"""Statistics of the columns at remote sites, from the requests that prepare rows: summaries, counts, null models.

Sites answer as their policies allow: they refuse columns with few values, merge rare categories and share counts of
values (for quartiles) only if `share_histograms` allows it. With masks, the statistics are those of all sites together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from fco_cli.config.schemas import Table1Settings
from fco_cli.data.readers.cells import category_name
from fco_cli.data.statistics import EXCHANGES, MEDIAN_BINS, MedianSearch, Moments, Summary
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.column_sums import counts_up_to
from fco_cli.federation.coordinator.remote_rows import SiteRows
from fco_cli.federation.coordinator.sites import Agreement
from fco_cli.federation.coordinator.task import Counts, CustomAtSites
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Logistic, Poisson, Softmax, Squared
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import NoRegularizer
from fco_cli.table1.cohort import QUARTILES, Cohort, with_column
from fco_cli.tasks.base import Task


def cohort_of_sites(task: Task, seed: int, settings: Table1Settings) -> Cohort:
    """Return the statistics of the sites' rows."""
    assert isinstance(task, CustomAtSites)
    described = cast(DescribedSites, DescribedSites.of(task, task.connection))
    return described.cross_validated().cohort(seed, settings)


class DescribedSites(CustomAtSites):
    """Task at sites that only describe its columns."""

    def cohort(self, seed: int, settings: Table1Settings) -> Cohort:
        """Return the statistics of the training rows: all rows without a column of parts."""
        data = self.build(seed, "float64")
        rows, notes = cast(SiteRows, data.training), list[str]()
        outcomes = self._outcomes(data, notes)
        kind, head = rows.agreement.requests[0]
        agreement = Agreement(self.connection)  # for these statistics only
        counts = self._counts_of(agreement, kind, head)
        if self.uses_sums:
            columns = list(data.description.preparation.columns)
            own = [{name: one.training for name, one in counts.items() if one.training}]
            summaries = self._summaries_from_sums(agreement, [counts], own, columns)
            notes.append("sums over the sites only: no columns of sites (federation.masks)")
        else:
            summaries = [
                Summary.from_plain(msgspec.structs.asdict(one.summary)) for one in counts.values() if one.summary
            ]
        size = len(summaries[0].columns)
        if outcomes is not None:
            summaries = [
                with_column(one, self.columns.label, own) for one, own in zip(summaries, outcomes, strict=True)
            ]
        search = QuartileSearch(agreement, summaries, size, counts)
        quartiles = None
        if settings.quartiles and (reason := search.refusal()) is None:
            quartiles = search
        elif settings.quartiles:
            notes.append(f"no medians: {reason}")
        return Cohort(summaries, 0 if outcomes is None else 1, quartiles, notes=notes)

    def _counts_of(self, agreement: Agreement, kind: str, head: dict[str, Any]) -> Counts:
        descriptions = {name: response.head for name, response in self.connection.descriptions().items()}
        responses = agreement.add(kind, head)
        columns = self._used_columns(descriptions)
        return self._row_counts(responses, columns, head["classes"], head["summary"], 1)[0]

    def _outcomes(self, data: TaskData, notes: list[str]) -> list[Moments | dict[str, int]] | None:
        """Return the labels' statistics of every site, or of all if masked, from the null model's loss and gradient."""
        rows = cast(SiteRows, data.training)
        parts = [rows] if rows.is_masked else [rows.client(m) for m in range(rows.clients)]
        try:
            return [_outcome(data, part) for part in parts]
        except UserError as refusal:
            notes.append(f"no statistics of the label: {refusal}")
            return None


def _outcome(data: TaskData, rows: SiteRows) -> Moments | dict[str, int]:
    """Return moments or counts of the labels; raise UserError if the loss of the null model does not determine them."""
    loss = data.loss
    if not isinstance(loss, Logistic | Softmax | Squared | Poisson):
        raise UserError(f"the null model of the {loss.name} loss does not determine them")
    problem = data.to_problem(NoRegularizer(), weighting="examples")
    model, count = np.zeros((1, problem.layout.size)), int(rows.sizes.sum())
    evaluation = rows.risk(rows.weights("examples"))(model, gradient=True)
    bias = evaluation.gradient[0, problem.layout.slices["bias"]]
    texts = data.description.classes
    if isinstance(loss, Logistic | Softmax):
        shares = 1 / len(bias) - bias if len(bias) > 1 else np.array([0.5 + bias[0], 0.5 - bias[0]])
        names = texts or [category_name(k) for k in range(len(shares))]
        return {name: round(count * share) for name, share in zip(names, shares, strict=True)}
    if isinstance(loss, Squared):
        mean = -bias / 2
        return Moments(np.array([count]), mean, count * np.maximum(evaluation.value - mean**2, 0))
    return Moments(np.array([count]), 1 - bias, np.full(1, np.nan))


class QuartileSearch:
    """Search of quartiles by counts of values at sites, to about 1e-9 of the range of a column."""

    def __init__(self, agreement: Agreement, summaries: list[Summary], size: int, counts: Counts) -> None:
        self.agreement, self.summaries, self.size = agreement, summaries, size
        self.rows = {name: one.training for name, one in counts.items() if one.training}

    def refusal(self) -> str | None:
        """Return the refusal of a site that answers no counts; None if all sites answer."""
        try:
            self._counts(self._searches(self.summaries)[0].edges, [*self.rows])
        except UserError as refusal:
            return str(refusal)
        return None

    def __call__(self, names: Sequence[str]) -> Array:
        """Return the quartiles [d, 3] of all columns at some sites, interpolated between neighbors."""
        own = [one for one in self.summaries if one.client in names] if len(self.summaries) > 1 else self.summaries
        sites = [*self.rows] if len(self.summaries) == 1 else list(names)
        values = []
        for first in self._searches(own):
            search = first
            while not search.finished:
                search = search.narrowed(self._counts(search.edges, sites))
            values.append(_rounded(search.high, first.high - first.low))
        count = np.sum([one.moments.count[: self.size] for one in own], axis=0)
        quartiles = []
        for k, share in enumerate(QUARTILES):
            part = np.modf((np.maximum(count, 1) - 1) * share)[0]
            quartiles.append(np.where(count > 0, (1 - part) * values[2 * k] + part * values[2 * k + 1], np.nan))
        return np.stack(quartiles, axis=1)

    def _searches(self, summaries: Sequence[Summary]) -> list[MedianSearch]:
        """Return two searches for every quartile: of the values below and above it."""
        count = np.sum([one.moments.count[: self.size] for one in summaries], axis=0)
        low = np.min([one.low[: self.size] for one in summaries], axis=0)
        high = np.max([one.high[: self.size] for one in summaries], axis=0)
        low, high = np.where(count > 0, low, 0), np.where(count > 0, high, 0)
        searches = []
        for share in QUARTILES:
            rank = np.floor((np.maximum(count, 1) - 1) * share).astype(int) + 1
            searches += [MedianSearch(count, low, high, rank=one) for one in (rank, np.minimum(rank + 1, count))]
        return searches

    def _counts(self, edges: Array, sites: list[str]) -> list[Array]:
        """Return the numbers of values up to each edge: of every site, or their sum if masked."""
        rows = {name: self.rows[name] for name in sites}
        return counts_up_to({0: edges}, self.agreement, {0: rows})[0]


def _rounded(values: Array, ranges: Array) -> Array:
    """Return the upper ends of finished searches, rounded to decimals that the searches have determined.

    A value with few decimals, such as 0 or 104.25, is then exact.
    """
    digits = -np.ceil(np.log10(np.maximum(ranges, np.finfo(float).tiny) / MEDIAN_BINS**EXCHANGES))
    return np.array([round(float(value), int(own)) for value, own in zip(values, digits, strict=True)])
