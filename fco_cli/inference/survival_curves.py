"""Kaplan-Meier curves, baseline hazards of a Cox model and calibration at a horizon, from sums over rows at risk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fco_cli.inference.estimate import Estimates
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import scores_of
from fco_cli.problem.risk_sets import RiskTable, coarse_times, hazard_steps, risk_table

GROUPS, EVENTS_PER_GROUP = 10, 10  # largest number of groups of a calibration, and events that a group should have


class Curve(NamedTuple):
    """Kaplan-Meier estimate at the times of a risk table, with the interval on the log-log scale."""

    survival: Array
    error: Array  # Greenwood's
    low: Array
    high: Array


def kaplan_meier(table: RiskTable, level: float) -> Curve:
    """Return the Kaplan-Meier curve; the interval is NaN before the first event and where no row survives."""
    with np.errstate(divide="ignore", invalid="ignore"):
        survival = np.cumprod(1 - table.events / table.at_risk)
        relative = np.sqrt(np.cumsum(table.events / (table.at_risk * (table.at_risk - table.events))))
        reach = np.exp(float(stats.norm.ppf((1 + level) / 2)) * relative / np.abs(np.log(survival)))
        low, high = survival**reach, survival ** (1 / reach)
        error = survival * relative
    error[survival == 0] = np.nan
    low[(survival == 0) | (survival == 1)] = np.nan
    high[np.isnan(low)] = np.nan
    return Curve(survival, error, low, high)


class FittedCox:
    """Cox model with the rows of every client; `min_cell` coarsens their times (`risk_sets.coarse_times`)."""

    def __init__(self, problem: Problem, estimates: Estimates, min_cell: int = 0) -> None:
        assert isinstance(problem.loss, Cox)
        self.ties, self.data, self.design = problem.loss.ties, problem.data, estimates.design
        self.w = estimates.design.start.copy()
        self.w[estimates.design.columns] = estimates.weights
        self.scores = scores_of(problem.model, problem.data, self.w[None])[0, 0].astype(float)
        self.names = list(problem.clients or (f"client {m}" for m in range(self.data.clients)))
        self.shift = _shift(problem, self.w)
        labels = [coarse_times(self.y[self.rows(m)], min_cell) for m in range(self.data.clients)]
        self.labels: dict[int, Array] = {m: own for m, own in enumerate(labels) if own is not None}
        self.min_cell = min_cell

    @property
    def y(self) -> Array:
        return self.data.y.astype(float)

    @property
    def withheld(self) -> list[str]:
        """Clients that have too few rows for a coarsened curve."""
        return [name for m, name in enumerate(self.names) if m not in self.labels]

    def rows(self, m: int) -> slice:
        return slice(int(self.data.offsets[m]), int(self.data.offsets[m + 1]))

    def survival_lines(self, level: float) -> list[dict[str, Any]]:
        """Return a line per client and time of the Kaplan-Meier curves."""
        lines = []
        for m, own in self.labels.items():
            table = risk_table(own)
            columns = {
                "time": table.times, "at_risk": table.at_risk.astype(int), "events": table.events.astype(int),
                "censored": table.censored.astype(int), **kaplan_meier(table, level)._asdict(),
            }  # fmt: skip
            lines += _lines(columns, client=self.names[m])
        return lines

    def baselines(self) -> Iterator[tuple[int, RiskTable, Array]]:
        """Yield every client with its risk table and the cumulative hazard of a row with score 0."""
        for m, own in self.labels.items():
            table = risk_table(own, np.exp(self.scores[self.rows(m)]))
            yield m, table, np.cumsum(hazard_steps(table, self.ties))

    def baseline_lines(self) -> list[dict[str, Any]]:
        """Return a line per client and time of the baseline hazards.

        `cumulative_hazard` refers to a row whose features are 0 in the units of the table, the columns `at_means` to a
        row with the mean features of all clients.
        """
        lines, mean = [], float(self.scores.mean())
        for m, table, hazard in self.baselines():
            at_means = hazard * np.exp(mean)
            with np.errstate(over="ignore"):
                at_zero = hazard * np.exp(-self.shift)
            columns = {
                "time": table.times, "events": table.events.astype(int), "cumulative_hazard": at_zero,
                "cumulative_hazard_at_means": at_means, "survival_at_means": np.exp(-at_means),
            }  # fmt: skip
            lines += _lines(columns, client=self.names[m])
        return lines

    def risks(self, horizon: float) -> tuple[Array, Array]:
        """Return the labels and the predicted risks until the horizon of the rows of clients with a baseline."""
        labels, risks = [], []
        for m, table, hazard in self.baselines():
            place = int(np.searchsorted(table.times, horizon, side="right")) - 1
            own = hazard[place] if place >= 0 else 0.0
            labels.append(self.labels[m])
            risks.append(-np.expm1(-own * np.exp(self.scores[self.rows(m)])))
        return np.concatenate(labels), np.concatenate(risks)

    def calibration_lines(self, horizon: float, level: float) -> list[dict[str, Any]]:
        """Return, by group of predicted risk, the mean risk and the Kaplan-Meier estimate of the risk."""
        y, risk = self.risks(horizon)
        events = int(((y > 0) & (y <= horizon)).sum())
        largest = len(y) // max(1, self.min_cell)
        groups = max(1, min(GROUPS, events // EVENTS_PER_GROUP, largest))
        lines = []
        for number, part in enumerate(np.array_split(np.argsort(risk, kind="stable"), groups), 1):
            table = risk_table(y[part])
            curve = kaplan_meier(table, level)
            place = int(np.searchsorted(table.times, horizon, side="right")) - 1
            columns = {
                "group": np.array([number]), "rows": np.array([len(part)]),
                "events": np.array([((y[part] > 0) & (y[part] <= horizon)).sum()]),
                "at_risk": np.array([(np.abs(y[part]) >= horizon).sum()]), "predicted": risk[part].mean(keepdims=True),
                "observed": 1 - (curve.survival[[place]] if place >= 0 else np.ones(1)),
                "low": 1 - (curve.high[[place]] if place >= 0 else np.full(1, np.nan)),
                "high": 1 - (curve.low[[place]] if place >= 0 else np.full(1, np.nan)),
            }  # fmt: skip
            lines += _lines(columns)
        return lines


def _shift(problem: Problem, w: Array) -> float:
    """Return the score of the mean features, in the units of the table, that the preparation has subtracted."""
    preparation = getattr(problem.description, "preparation", None)
    if preparation is None or not preparation.mean:
        return 0.0
    size = len(preparation.mean)
    return float(w[:size] @ (np.array(preparation.mean) / np.array(preparation.scale)))


def _lines(columns: dict[str, Array], **common: str) -> list[dict[str, Any]]:
    """Return the lines of columns; numbers that are not finite are None."""
    lines = []
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        finite = [value if np.isfinite(value) else None for value in values]
        lines.append({**common, **dict(zip(columns, finite, strict=True))})
    return lines
