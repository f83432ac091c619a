"""Survival analysis of a Cox model as tables and sums of every client: risk sets, concordance, tests, calibration.

A site calls these functions with its own rows, and the simulation with those of every client. `minimum` is the smallest
number of events, and of censored rows other than none, in an interval of times (`risk_sets.coarse_times`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.curvature import pack, unpack
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.risk import ordered_sum
from fco_cli.problem.risk_sets import GRID, RiskTable, coarse_times_until, hazard_steps, risk_table

MAX_INTERVALS = GRID + 1  # of coarsened times
MAX_GROUPS, EVENTS_PER_GROUP = 10, 10  # largest number of groups of a calibration, and events that a group should have
GROUP_NUMBERS = 6  # rows, events until the horizon, later rows, mean risk, survival, its relative variance
TABLE_NUMBERS = 5  # by interval: end, events, censored rows, weight at risk, weight of the events
PAIR_NUMBERS = 6  # concordant, discordant and tied pairs; sums over rows of a^2, a n and n^2


class ClientSurvival(Protocol):
    """Tables and sums of all clients at one model; clients with too few rows are left out."""

    def tables(self) -> dict[int, RiskTable]:
        """Return the risk tables of the clients, with weights e^score."""

    def total_score(self) -> float | None:
        """Return the sum of the scores of all rows, None if a client does not share its own."""

    def pairs(self) -> tuple[Array | None, dict[int, Array]]:
        """Return the sums of pairs of all clients, None if they are unknown, and those of every known client."""

    def test_sums(self, g: Mapping[int, Array]) -> tuple[Array, Array]:
        """Return the score [A] and the information [3, A, A] of all clients with g(t) at the times of their tables."""

    def calibration(self, horizon: float) -> dict[int, Array]:
        """Return groups of predicted risk [G, 6] of the clients."""


@kernel
def count_pairs_of_rows(scores, y, concordant, discordant, tied):
    """Add the pairs in which every row of a client takes part; a pair is comparable if the shorter time is an event."""
    for i in range(scores.shape[0]):
        if y[i] > 0:
            for k in range(scores.shape[0]):
                if abs(y[k]) > y[i] or (y[k] < 0 and -y[k] == y[i]):
                    if scores[i] > scores[k]:
                        concordant[i] += 1
                        concordant[k] += 1
                    elif scores[i] < scores[k]:
                        discordant[i] += 1
                        discordant[k] += 1
                    else:
                        tied[i] += 1
                        tied[k] += 1


def pair_sums(y: Array, scores: Array) -> Array:
    """Return the numbers of pairs [6] of one client, and the sums for the error of their concordance.

    Row i takes part in n_i pairs, and a_i is the number of concordant ones with ties as 1/2.
    """
    counts = np.zeros((3, len(y)))
    specialize(count_pairs_of_rows)(scores, y, *counts)
    a, n = counts[0] + counts[2] / 2, counts.sum(axis=0)
    return np.append(counts.sum(axis=1) / 2, [(a * a).sum(), (a * n).sum(), (n * n).sum()])


def pair_exponent(rows: int) -> int:
    """Return the exponent k with 2^k >= rows, for numbers of pairs of order 1."""
    return max(0, int(rows - 1).bit_length())


def scaled_pairs(sums: Array, exponent: int, sign: int = -1) -> Array:
    """Return the sums [..., 6] divided by 2^(2 k) and 2^(3 k); multiplied with sign 1."""
    return np.ldexp(sums, sign * exponent * np.array([2, 2, 2, 3, 3, 3]))


def hazard_test_sums(x: Array, y: Array, scores: Array, g: Array, ties: str) -> tuple[Array, Array]:
    """Return sums of a client's test of proportional hazards (Grambsch and Therneau, 1994), given g(t) [N] of its rows.

    These are the sum over events of g(t) (x - m) [A] and those of V, g V and g^2 V, packed [3, A (A + 1) / 2], where m
    and V are the mean and the covariance matrix of x over the rows at risk, with weights e^score.
    """
    with threadpool_limits(1, user_api="blas"):  # sums depend bitwise on the number of threads
        score, information = _test_sums(x, y, scores, g, ties)
    return score, pack(information)


def _test_sums(x: Array, y: Array, scores: Array, g: Array, ties: str) -> tuple[Array, Array]:
    size, e, times = x.shape[1], np.exp(scores - scores.max()), np.abs(y)
    score, information = np.zeros(size), np.zeros((3, size, size))
    x = x - x.mean(axis=0)
    order = np.argsort(-times, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(times[order]) != 0))
    total, sums, products = 0.0, np.zeros(size), np.zeros((size, size))
    for low, high in zip(starts, np.append(starts[1:], len(y)), strict=True):  # in order of decreasing time
        own = order[low:high]
        total, sums = total + e[own].sum(), sums + e[own] @ x[own]
        products = products + (x[own].T * e[own]) @ x[own]
        tied = own[y[own] > 0]
        if not len(tied):
            continue
        tied_total, tied_sums, tied_products = e[tied].sum(), e[tied] @ x[tied], (x[tied].T * e[tied]) @ x[tied]
        time = g[tied[0]]
        score += time * x[tied].sum(axis=0)
        for r in range(len(tied)):
            removed = r / len(tied) if ties == "efron" else 0.0
            denominator = total - removed * tied_total
            mean = (sums - removed * tied_sums) / denominator
            covariance = (products - removed * tied_products) / denominator - np.outer(mean, mean)
            score -= time * mean
            information += np.array([1, time, time**2])[:, None, None] * covariance
    return score, information


def table_array(table: RiskTable) -> Array:
    """Return a coarsened table as an array [5, MAX_INTERVALS] with zeros after the last interval."""
    array = np.zeros((TABLE_NUMBERS, MAX_INTERVALS))
    rows = (table.times, table.events, table.censored, table.weight, table.tied_weight)
    array[:, : len(table.times)] = np.stack(rows)
    return array


def table_of_array(array: Array) -> RiskTable | None:
    """Return the table in an array of `table_array`, None for one of zeros."""
    times, events, censored, weight, tied_weight = array[:, array[0] > 0]
    at_risk = np.cumsum((events + censored)[::-1])[::-1]
    return RiskTable(times, at_risk, events, censored, weight, tied_weight) if len(times) else None


def at_labels(table: RiskTable, values: Array, labels: Array) -> Array:
    """Return the values [T] at the times of a table for every label [N]."""
    return values[np.searchsorted(table.times, np.abs(labels))]


def calibration_groups(y: Array, scores: Array, ties: str, horizon: float, minimum: int) -> Array | None:
    """Return a client's groups of predicted risk [G, 6], lowest risk first; None if it has too few rows.

    The observed risk of a group is the Kaplan-Meier estimate of its own rows. Times are coarsened for the baseline
    hazard, and in every group (`risk_sets.coarse_times_until`).
    """
    if (whole := coarse_times_until(y, minimum, horizon)) is None:
        return None
    hazard = hazard_until(risk_table(whole, np.exp(scores)), ties, horizon)
    risk = -np.expm1(-hazard * np.exp(scores))
    events = int(((y > 0) & (y <= horizon)).sum())
    largest = max(1, min(MAX_GROUPS, events // EVENTS_PER_GROUP, len(y) // max(1, minimum)))
    order = np.argsort(risk, kind="stable")
    for count in range(largest, 0, -1):
        parts = np.array_split(order, count)
        labels = [coarse_times_until(y[part], minimum, horizon) for part in parts]
        known = [own for own in labels if own is not None]
        if len(known) == count:
            return np.array([_group(own, risk[part], horizon) for own, part in zip(known, parts, strict=True)])
    return None


def _group(labels: Array, risk: Array, horizon: float) -> list[float]:
    table = risk_table(labels)
    until = table.times <= horizon
    events, at_risk = table.events[until], table.at_risk[until]
    left = at_risk - events
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = float(np.where(events > 0, events / (at_risk * left), 0).sum())  # Greenwood's, relative
    survival = float(np.prod(left / at_risk))
    later = int((np.abs(labels) > horizon).sum())
    return [len(labels), int(events.sum()), later, float(risk.mean()), survival, variance if survival > 0 else 0.0]


def dense_columns(data: ClientData, columns: Array) -> Array:
    """Return some columns of a client's features [N, A]."""
    x = data.x
    if not isinstance(x, SparseRows):
        return np.asarray(x[:, columns], dtype=float)
    dense = np.zeros(x.shape)
    for i in range(len(dense)):
        entries = slice(x.starts[i], x.starts[i + 1])
        np.add.at(dense[i], x.columns[entries], x.values[entries])
    return dense[:, columns]


def has_enough_events(y: Array, minimum: int) -> bool:
    """Return True if numbers of pairs of these labels may be known."""
    return bool((y > 0).sum() >= minimum)


def hazard_until(table: RiskTable, ties: str, horizon: float) -> float:
    """Return the baseline cumulative hazard at a time."""
    place = int(np.searchsorted(table.times, horizon, side="right"))
    return float(np.cumsum(hazard_steps(table, ties))[place - 1]) if place else 0.0


def sum_of_pairs(by_client: Mapping[int, Array]) -> Array | None:
    """Return the sum [6] over clients in order, None without clients."""
    return ordered_sum(np.stack(list(by_client.values()))[:, None])[0] if by_client else None


def sum_of_tests(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the sum over clients, in order, of the results of `hazard_test_sums`, as [A] and [3, A, A]."""
    scores, information = (np.stack(one) for one in zip(*parts, strict=True))
    return ordered_sum(scores[:, None])[0], unpack(ordered_sum(information))


def sum_in_order(numbers: Sequence[float]) -> float:
    return float(ordered_sum(np.array(numbers)[:, None, None])[0, 0])
