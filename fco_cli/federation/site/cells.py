"""Small cells: rare categories, extremes, bins and record numbers, and the rows that determine a model's curvature."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import pdtr

from fco_cli.data.format import Features, shown
from fco_cli.data.preparation import OTHER
from fco_cli.data.statistics import Summary
from fco_cli.federation.policy import Policy
from fco_cli.problem.data import ClientData, Rows, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss
from fco_cli.problem.losses.classification import Logistic, Softmax
from fco_cli.problem.losses.regression import Poisson
from fco_cli.problem.losses.survival import Cox

MIN_DISTINCT = 0.9  # share of distinct values in a column of record numbers
MAX_CHANCE = 1e-6  # probability that random draws from the range of a column repeat as seldom as its values
MAX_ROUND = 0.2  # share of multiples of 10 in a column of record numbers
MIN_PRECISE_ROWS = 10  # values of a column of long record numbers
MAX_PARTS = 32  # parts of the rows whose cells are cached
MAX_VALUES = 12  # values of a column that have a cell each
MAX_WORK = 1e9  # of the search for cross cells of three columns: cells^3 x rows
MIN_CURVATURE = 1e-9  # relative curvature of a row that a model does not saturate


def are_record_numbers(values: Array) -> bool:
    """Return True if values look like numbers that were assigned to records, not measured.

    At least 90 % are distinct whole numbers and either they repeat less often than random draws from their range would
    (with probability below 1e-6: serial numbers are assigned without replacement), or most have six digits or more of
    which the last is not 0, a precision that no measurement of a patient has.
    """
    values = values[~np.isnan(values)]
    count = len(values)
    if not count or not (np.abs(values) < 2**53).all() or (values != np.rint(values)).any():
        return False  # beyond 2^53, every number is whole
    distinct = len(np.unique(values))
    if distinct < MIN_DISTINCT * count:
        return False
    size = float(values.max() - values.min()) + 1
    if distinct == count:  # probability that uniform draws do not repeat
        chance = math.exp(np.log1p(-np.arange(count) / size).sum())
    else:  # about Poisson
        chance = pdtr(count - distinct, count * (count - 1) / 2 / size)
    is_serial = chance < MAX_CHANCE
    is_precise = float(np.median(np.abs(values))) >= 10**5 and (values % 10 == 0).mean() <= MAX_ROUND
    return bool(is_serial or (is_precise and count >= MIN_PRECISE_ROWS))


def curvature_weights(loss: Loss, scores: Array) -> Array:
    """Return the curvature [J, N] of the loss of every row at scores [J, C, N], relative to the largest one.

    It is p (1 - p) of the likeliest class, or exp(score) of counts and hazards. NaN if a score is not finite.
    """
    if isinstance(loss, Logistic | Softmax):
        if scores.shape[1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
        ordered = np.sort(scores, axis=1) - scores.max(axis=1, keepdims=True)
        others, total = (np.logaddexp.reduce(one, axis=1) for one in (ordered[:, :-1], ordered))
        logarithm = others - 2 * total
    elif isinstance(loss, Poisson | Cox):
        logarithm = scores[:, 0]
    else:  # constant, or not larger for few rows
        logarithm = 0 * scores.sum(axis=1)
    return np.exp(logarithm - logarithm.max(axis=1, keepdims=True))


def are_steep(v: Array, cells: Array, least: int) -> Array:
    """Return which models [J] have curvature weights v [J, N] that single out few rows.

    The effective number of rows is below `least` (half of the rows of a small part), or in a cell below half of that
    (a quarter of its rows), or `least` rows have almost no curvature: their scores are far from 0, and a small change
    of the model moves few of them across.
    """
    rows, sizes = v.shape[1], cells.sum(axis=1)
    effective = effective_number(v)
    in_cells = (v @ cells.T) ** 2 / (v**2 @ cells.T)  # NaN if no row of a cell has any
    enough = (effective >= min(least, rows / 2)) & (in_cells >= np.minimum(least / 2, sizes / 4)).all(axis=1)
    saturated = (v < MIN_CURVATURE).sum(axis=1)
    return ~(enough & (saturated < least))


def cells_of(x: Rows, least: int) -> Array:
    """Return cells [K, N]: rows in which a column has its most frequent value, and all others, of `least` rows or more.

    A model can be constant on one of them and steep on the other, as in the pack-years of smokers.
    """
    rows = x.shape[0]
    cells = [
        cell for own, _ in _frequent_values(x) for cell in (own, ~own) if min(own.sum(), rows - own.sum()) >= least
    ]
    return np.unique(np.array(cells, float).reshape(-1, rows), axis=0)


def column_cells(x: Rows, least: int) -> tuple[Array, Array]:
    """Return cells [K, N] of `least` rows or more on both sides, and their columns [K].

    They are the rows in which a column has one of its common values, or does not have its most frequent value. A column
    with more than MAX_VALUES common values, which are numbers, has the latter only.
    """
    rows = x.shape[0]
    places = np.unique(x.columns) if isinstance(x, SparseRows) else np.arange(x.shape[1])
    cells, columns = [np.zeros((0, rows), bool)], [np.zeros(0, int)]
    for place, (own, _) in zip(places, _frequent_values(x), strict=True):
        made = [own, ~own]
        if not isinstance(x, SparseRows):
            values, counts = np.unique(np.asarray(x)[:, place], return_counts=True)
            if len(common := values[counts >= least]) <= MAX_VALUES:
                made += [np.asarray(x)[:, place] == value for value in common]
        kept = np.unique([one for one in made if least <= one.sum() <= rows - least] or cells[0], axis=0)
        cells, columns = [*cells, kept], [*columns, np.full(len(kept), place)]
    return np.concatenate(cells), np.concatenate(columns)


def table_cells(table: Features, least: int) -> tuple[Array, Array]:
    """Return cells [K, N] of `least` rows or more on both sides, and their columns [K], of a table before preparation.

    They are the rows of a category, or without a value: an analyst chooses fill values, and which categories have
    indicators, so that the prepared columns need not show these rows.
    """
    rows = len(table.x)
    cells, columns = [np.zeros((0, rows), bool)], [np.zeros(0, int)]
    for k in range(table.x.shape[1]):
        missing = np.isnan(table.x[:, k])
        made = [missing]
        if k in table.levels:
            names = np.array(table.levels[k])[np.where(missing, 0, table.x[:, k]).astype(int)]
            made += [~missing & (names == name) for name in dict.fromkeys(table.levels[k])]
        kept = np.array([one for one in made if least <= one.sum() <= rows - least], bool).reshape(-1, rows)
        cells, columns = [*cells, kept], [*columns, np.full(len(kept), k)]
    return np.concatenate(cells), np.concatenate(columns)


def rare_values(x: Rows, least: int) -> Iterator[tuple[Array, int]]:
    """Yield the rows of every value of fewer than `least` rows, and its column, of columns with few values.

    Models of such a column alone are functions of its few values: as many of them determine the sum over each value.
    """
    if isinstance(x, SparseRows):
        return
    for k, column in enumerate(np.asarray(x).T):
        values, counts = np.unique(column, return_counts=True)
        if len(values) <= MAX_VALUES:
            for value in values[counts < least]:
                yield np.flatnonzero(column == value), k


def small_cells(x: Rows, least: int, table: Features | None = None) -> Iterator[tuple[Array, list[int]]]:
    """Yield the rows of cross cells of fewer than `least` rows, and their two or three columns (`column_cells`).

    Cells of three columns are left out if there are many columns, or within a small cell of two. The columns of a
    `table`, from which x was prepared, come after those of x.
    """
    cells, columns = column_cells(x, least)
    if table is not None and len(table.x):
        known = {one.tobytes() for one in np.concatenate([cells, ~cells])}
        more, places = table_cells(table, least)
        new = np.array([k for k, one in enumerate(more) if one.tobytes() not in known], int)
        cells, columns = np.concatenate([cells, more[new]]), np.append(columns, x.shape[1] + places[new])
    numbers = cells.astype(np.float32)
    counts = numbers @ numbers.T
    is_small = (counts > 0) & (counts < least)
    for a, b in np.argwhere(np.triu(is_small)):
        yield np.flatnonzero(cells[a] & cells[b]), [int(columns[a]), int(columns[b])]
    if len(cells) ** 3 * x.shape[0] > MAX_WORK:
        return
    for a, b in np.argwhere(np.triu(counts >= least, 1)):
        both = cells[a] & cells[b]
        of_three = numbers @ both
        for c in np.flatnonzero((of_three > 0) & (of_three < least) & ~is_small[a] & ~is_small[b]):
            if c > b:
                yield np.flatnonzero(both & cells[c]), sorted({int(columns[one]) for one in (a, b, c)})


class KnownCells:
    """Cells of the last parts of rows, each computed once."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.parts: dict[int, tuple[ClientData, Array]] = {}

    def of(self, data: ClientData) -> Array:
        """Return the cells of some rows."""
        known = self.parts.get(id(data))
        if known is None or known[0] is not data:
            while len(self.parts) >= MAX_PARTS:
                del self.parts[next(iter(self.parts))]
            known = self.parts[id(data)] = (data, cells_of(data.x, self.least))
        return known[1]


def smallest_cross_cell(x: Rows) -> int:
    """Return the smallest number of rows, above 0, behind an entry of a Hessian about two columns.

    An entry is a sum over the rows in which both columns have other values than their most frequent ones; for a column
    with two values, linear combinations of entries are sums over the rows with either of them.
    """
    rows = x.shape[0]
    cells = [cell for own, count in _frequent_values(x) for cell in ((own, ~own) if count == 2 else (~own,))]
    cells = [cell for cell in cells if 0 < cell.sum() < rows]
    overlaps = np.array(cells, float).reshape(-1, rows)
    counts = overlaps @ overlaps.T
    return int(counts[counts > 0].min(initial=rows))


def _frequent_values(x: Rows) -> Iterator[tuple[Array, int]]:
    """Yield the rows [N] in which a column has its most frequent value, and its number of values."""
    if isinstance(x, SparseRows):
        of_row = np.repeat(np.arange(x.shape[0]), np.diff(x.starts))
        for column in np.unique(x.columns):
            filled = np.zeros(x.shape[0])
            own = x.columns == column
            filled[of_row[own]] = x.values[own]
            yield filled == 0, len(np.unique(filled))
        return
    for column in np.asarray(x).T:
        values, counts = np.unique(column, return_counts=True)
        yield column == values[counts.argmax()], len(values)


def effective_number(v: Array) -> Array:
    """Return Kish's effective number (sum v)^2 / sum v^2 of weights [J, N]."""
    return v.sum(axis=1) ** 2 / (v**2).sum(axis=1)


def check_rare_values(table: Features, policy: Policy) -> None:
    """Raise Refusal if all but a few rows of a column of numbers are equal: it would mark those few."""
    for k in sorted(set(range(table.x.shape[1])) - table.levels.keys()):
        values = table.x[:, k]
        counts = np.unique(values[~np.isnan(values)], return_counts=True)[1]
        if 0 < (others := int(counts.sum() - counts.max(initial=0))) < policy.min_rows:
            remedy = "drop the column at the site: fco-federate join --drop"
            policy.check_rows(others, f"a column ({shown(table.names[k])}) with another value", remedy)


def merge_rare(counts: dict[str, int], least: int) -> dict[str, int]:
    """Return the counts with categories of fewer than `least` rows merged into `other`, which has at least as many."""
    kept = {name: count for name, count in counts.items() if count >= least and name != OTHER}
    rest = sum(counts.values()) - sum(kept.values())
    while kept and 0 < rest < least:
        rarest = min(kept, key=lambda name: (kept[name], name))
        rest += kept.pop(rarest)
    return kept | ({OTHER: rest} if rest else {})


def rounded_extremes(x: Array, summary: Summary, least: int) -> tuple[Array, Array]:
    """Return a lower and an upper bound of most values of every column: means of `least` extreme values, rounded.

    The grid is a power of two, at most the column's standard deviation.
    """
    low, high = summary.low.copy(), summary.high.copy()
    step = grid_steps(summary.moments.scale)
    for k in np.flatnonzero(summary.moments.count):
        values = np.sort(x[~np.isnan(x[:, k]), k])
        low[k] = np.floor(values[:least].mean() / step[k]) * step[k]
        high[k] = np.ceil(values[-least:].mean() / step[k]) * step[k]
    return low, high


def grid_steps(scale: Array) -> Array:
    """Return the largest powers of two that do not exceed the scales; 1 for a scale that is 0 or not finite."""
    valid = np.isfinite(scale) & (scale > 0)
    return np.exp2(np.floor(np.log2(np.where(valid, scale, 1.0))))


def merged_bins(counts: Array, least: int) -> Array:
    """Return a histogram in which every bin is empty or holds `least` rows, as far as there are as many."""
    merged, rest, last = np.zeros_like(counts), 0.0, -1
    for k, count in enumerate(counts):
        rest += count
        if rest >= least:
            merged[k], rest, last = rest, 0.0, k
    merged[last] += rest  # into the last filled bin, or the last bin if there is none
    return merged
