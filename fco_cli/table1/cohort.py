"""Statistics of the columns of every client, from which table 1 is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from fco_cli.data.format import Features, FederatedData
from fco_cli.data.sparse import is_sparse
from fco_cli.data.statistics import Moments, Summary
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

QUARTILES = (0.25, 0.5, 0.75)
Quartiles = Callable[[Sequence[str]], Array]  # of the rows of some clients together: [d, 3]
EVENT = "event"
SMALLEST_SQUARE = 1e-290  # sums of squares below it have lost digits to underflow


@dataclass(frozen=True)
class Cohort:
    """Statistics of the columns of every client; the last `outcomes` columns are those of the label."""

    summaries: list[Summary]  # by client, with equal columns
    outcomes: int
    quartiles: Quartiles | None = None  # of the columns before the outcomes, or of all columns; None: unknown
    few: Array | None = None  # [M, d], True where all but a few rows of a client have one value; None: unknown
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [summary.client for summary in self.summaries]


def cohort_of(data: FederatedData, label: str, event: str | None, least: int) -> Cohort:
    """Return the statistics of rows in this process; fewer than `least` rows count as few."""
    if is_sparse(data.x):
        raise UserError(f"{data.source}: rows are sparse; experiment=table1 needs a table")
    outcome, levels = outcome_columns(data.y, data.classes, label, event)
    size = data.x.shape[1]
    clients: dict[str, Features] = {}
    for name, rows in data.by_client():
        own = data.client == name
        x = np.column_stack([np.asarray(rows.x, float), *(values[own] for values in outcome.values())])
        shifted = {size + k: texts for k, texts in levels.items()}
        clients[name] = replace(rows, x=x, names=[*rows.names, *outcome], levels=rows.levels | shifted)

    def quartiles(names: Sequence[str]) -> Array:
        x = np.concatenate([clients[name].x for name in names])
        return np.array([_quartiles(values[~np.isnan(values)]) for values in x.T])

    few = np.array([[_differ_in_few(values, least) for values in rows.x.T] for rows in clients.values()])
    return Cohort([Summary.of(name, rows) for name, rows in clients.items()], len(outcome), quartiles, few)


def outcome_columns(
    y: Array, classes: Array | None, label: str, event: str | None
) -> tuple[dict[str, Array], dict[int, list[str]]]:
    """Return the columns of the labels by name, and the texts of their classes by position.

    Labels with an event are times, which are negative if censored.
    """
    y = y.astype(float)
    if event is not None:
        return {label: np.abs(y), event: (y > 0).astype(float)}, {}
    return {label: y}, {} if classes is None else {0: classes.tolist()}


def _quartiles(values: Array) -> Array:
    """Return the quartiles of numbers, interpolated between neighbors (R's type 7); NaN if there are none."""
    return np.quantile(values, QUARTILES) if len(values) else np.full(3, np.nan)


def _differ_in_few(values: Array, least: int) -> bool:
    counts = np.unique(values[~np.isnan(values)], return_counts=True)[1]
    return 0 < counts.sum() - counts.max(initial=0) < least


def merge(summaries: Sequence[Summary]) -> Summary:
    """Return the summary of several clients together."""
    return reduce(Summary.merge, summaries)


def two_values(summaries: Sequence[Summary], column: int) -> tuple[float, float] | None:
    """Return the two values of a column of numbers that has no others; None if it has.

    With values in [a, b], the variance is as large as (mean - a) (b - mean) only if all values are a or b. It is not
    known for numbers whose squares overflow or have few digits.
    """
    own = [one for one in summaries if one.moments.count[column]]
    if not own:
        return None
    total = merge(own)
    low, high, moments = float(total.low[column]), float(total.high[column]), total.moments
    if not np.isfinite(low + high) or low == high:
        return None
    count, mean = moments.count[column], moments.mean[column]
    with np.errstate(over="ignore"):
        largest = count * (mean - low) * (high - mean)
    is_known = SMALLEST_SQUARE < largest < np.inf
    return (low, high) if is_known and abs(moments.deviations[column] - largest) <= 1e-9 * largest else None


def as_category(summary: Summary, column: int, values: tuple[float, float], names: tuple[str, str]) -> dict[str, int]:
    """Return the counts of the two values of a column of numbers, from its mean."""
    count, mean = int(summary.moments.count[column]), float(summary.moments.mean[column])
    upper = round(count * (mean - values[0]) / (values[1] - values[0])) if count else 0
    return {names[0]: count - upper, names[1]: upper}


def with_column(summary: Summary, name: str, column: Moments | dict[str, int]) -> Summary:
    """Return the summary with another column: moments of one number, or counts of categories."""
    known = {name: column} if isinstance(column, dict) else {}
    own = Moments(np.zeros(1, np.int64), np.zeros(1), np.zeros(1)) if isinstance(column, dict) else column
    moments = Moments(*(np.append(getattr(summary.moments, part), getattr(own, part)) for part in
                        ("count", "mean", "deviations")))  # fmt: skip
    return replace(
        summary, columns=[*summary.columns, name], categories=summary.categories | known, moments=moments,
        low=np.append(summary.low, np.inf), high=np.append(summary.high, -np.inf),
    )  # fmt: skip
