"""Risk sets of survival times: counts and sums by time, and times coarsened until every count is large enough.

Labels are times, negative for censored rows, as in the Cox loss. A site calls these functions with its own rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.problem.layout import Array

GRID = 50  # intervals of the grid on which coarsened times lie, up to a factor 2.5


class RiskTable(NamedTuple):
    """Rows of one client by distinct time, in increasing order."""

    times: Array  # [T]
    at_risk: Array  # [T], rows whose time is not shorter
    events: Array  # [T]
    censored: Array  # [T]
    weight: Array  # [T], sum of the weights of the rows at risk
    tied_weight: Array  # [T], sum of the weights of the rows with an event at the time


def risk_table(y: Array, weights: Array | None = None) -> RiskTable:
    """Return the risk table of labels y [N]; `weights` [N] are e^score, 1 by default."""
    own = np.ones(len(y)) if weights is None else weights
    times, place = np.unique(np.abs(y), return_inverse=True)

    def by_time(values: Array) -> Array:
        return np.bincount(place, weights=values, minlength=len(times))

    def from_end(values: Array) -> Array:
        return np.cumsum(values[::-1])[::-1]

    events, rows = by_time(y > 0), by_time(np.ones(len(y)))
    return RiskTable(times, from_end(rows), events, rows - events, from_end(by_time(own)), by_time(own * (y > 0)))


def hazard_steps(table: RiskTable, ties: str) -> Array:
    """Return the increments [T] of the baseline cumulative hazard by Breslow's or Efron's method."""
    if ties == "breslow":
        return table.events / table.weight
    steps = np.zeros(len(table.times))
    for k in np.flatnonzero(table.events):
        removed = np.arange(table.events[k]) / table.events[k]
        steps[k] = (1 / (table.weight[k] - removed * table.tied_weight[k])).sum()
    return steps


def coarse_times(y: Array, minimum: int) -> Array | None:
    """Return the labels with every time replaced by the end of its interval; None if there are too few rows.

    In every interval, at least `minimum` rows have an event, and none or at least `minimum` rows are censored. The
    intervals end at multiples of a round number, not at the times of rows. With a minimum of 1 or less the labels do
    not change.
    """
    if minimum <= 1:
        return y
    return _coarse(y, minimum, _round_number(float(np.abs(y).max()) / GRID))


def coarse_times_until(y: Array, minimum: int, horizon: float) -> Array | None:
    """Return the labels as `coarse_times` does, with an interval that ends at the horizon, and one of all later times.

    No or at least `minimum` rows are later.
    """
    if minimum <= 1:
        return y
    late = np.abs(y) > horizon
    if late.all() or 0 < late.sum() < minimum:
        return None
    own = _coarse(y[~late], minimum, _round_number(horizon / GRID))
    if own is None:
        return None
    labels = np.full(len(y), -2 * horizon)
    labels[~late] = np.where(np.abs(own) == np.abs(own).max(), np.sign(own) * horizon, own)
    return labels


def _coarse(y: Array, minimum: int, step: float) -> Array | None:
    """Return the labels at the ends of intervals, which are multiples of a step; None if there are too few rows."""
    times = np.abs(y)
    cell = np.ceil(times / step).astype(int)
    events, censored = np.bincount(cell[y > 0], minlength=cell.max() + 1), np.bincount(cell[y < 0])
    censored = np.pad(censored, (0, len(events) - len(censored)))
    ends: list[int] = []
    counts: list[tuple[int, int]] = []  # events and censored rows of every interval
    own = (0, 0)
    for k in range(len(events)):
        own = (own[0] + int(events[k]), own[1] + int(censored[k]))
        if _is_large(own, minimum):
            ends, counts, own = [*ends, k], [*counts, own], (0, 0)
    if any(own):  # rows after the last interval join it
        ends, counts = [*ends, len(events) - 1], [*counts, own]
        while len(counts) > 1 and not _is_large(counts[-1], minimum):
            last = counts.pop()
            counts[-1] = (counts[-1][0] + last[0], counts[-1][1] + last[1])
            ends.pop(-2)
    if not counts or not _is_large(counts[-1], minimum):
        return None
    coarse = np.array(ends)[np.searchsorted(ends, cell)] * step
    return np.where(y > 0, coarse, -coarse)


def _is_large(counts: tuple[int, int], minimum: int) -> bool:
    return counts[0] >= minimum and (counts[1] == 0 or counts[1] >= minimum)


def _round_number(value: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of 10 that is at least `value`."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(power * next(factor for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-12)))
