"""Tables and sums of the clients of a Cox model whose rows are in this process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import scores_of
from fco_cli.problem.risk_sets import RiskTable, coarse_times, risk_table
from fco_cli.problem.survival_tables import (
    PAIR_NUMBERS,
    at_labels,
    calibration_groups,
    dense_columns,
    has_enough_events,
    hazard_test_sums,
    pair_exponent,
    pair_sums,
    scaled_pairs,
    sum_in_order,
    sum_of_pairs,
    sum_of_tests,
)


class LocalSurvival:
    """`ClientSurvival` of rows in this process, at a model w [P] whose weights of `columns` are estimated.

    With `bits`, sums over clients are those of fixed-point numbers, as with masks.
    """

    def __init__(self, problem: Problem, w: Array, columns: Array, minimum: int, bits: int | None = None) -> None:
        self.data, self.columns, self.minimum, self.bits = problem.data, columns, minimum, bits
        assert isinstance(problem.loss, Cox)
        self.ties = problem.loss.ties
        scores = scores_of(problem.model, problem.data, w[None])[0, 0].astype(float)
        self.rows = [slice(low, high) for low, high in zip(self.data.offsets, self.data.offsets[1:], strict=False)]
        self.y, self.scores = [self.data.y[own].astype(float) for own in self.rows], [scores[own] for own in self.rows]
        labels = [coarse_times(y, minimum) for y in self.y]
        self.labels: dict[int, Array] = {m: own for m, own in enumerate(labels) if own is not None}

    def tables(self) -> dict[int, RiskTable]:
        return {m: risk_table(own, np.exp(self.scores[m])) for m, own in self.labels.items()}

    def total_score(self) -> float:
        return sum_in_order([float(scores.sum()) for scores in self.scores])

    def pairs(self) -> tuple[Array | None, dict[int, Array]]:
        enough = [m for m, y in enumerate(self.y) if has_enough_events(y, self.minimum)]
        by_client = {m: pair_sums(self.y[m], self.scores[m]) for m in enough}
        if len(by_client) < len(self.y) and self.bits is not None:
            return None, by_client
        if self.bits is None or not by_client:
            return sum_of_pairs(by_client), by_client
        exponent = pair_exponent(int(self.data.sizes.sum()))
        total, fits = np.zeros((1, PAIR_NUMBERS), np.int64), np.ones(1, bool)
        for sums in by_client.values():
            scaled, in_range = to_fixed_point({"pairs": scaled_pairs(sums, exponent)[None]}, self.bits, len(by_client))
            total, fits = total + scaled["pairs"], fits & in_range
        return (scaled_pairs(from_fixed_point(total, self.bits)[0], exponent, 1) if fits[0] else None), by_client

    def test_sums(self, g: Mapping[int, Array]) -> tuple[Array, Array]:
        tables = {m: risk_table(own) for m, own in self.labels.items()}
        parts = []
        for m, y in enumerate(self.y):
            own = at_labels(tables[m], g[m], self.labels[m]) if m in g else np.zeros(len(y))
            x = dense_columns(self.data.client(m), self.columns)
            parts.append(hazard_test_sums(x, y, self.scores[m], own, self.ties))
        return sum_of_tests(parts)

    def calibration(self, horizon: float) -> dict[int, Array]:
        by_client = {
            m: calibration_groups(y, self.scores[m], self.ties, horizon, self.minimum) for m, y in enumerate(self.y)
        }
        return {m: groups for m, groups in by_client.items() if groups is not None}
