"""Kaplan-Meier curves, baseline hazards of a Cox model and calibration at a horizon, from sums over rows at risk."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fco_cli.inference.estimate import Estimates
from fco_cli.inference.survival_clients import LocalSurvival
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk_sets import RiskTable, hazard_steps
from fco_cli.problem.survival_tables import EVENTS_PER_GROUP, MAX_GROUPS, ClientSurvival

ALL_CLIENTS = "all clients"


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
        error = survival * relative
    error[survival == 0] = np.nan
    return Curve(survival, error, *interval_of(survival, relative, level))


def interval_of(survival: Array, relative: Array, level: float) -> tuple[Array, Array]:
    """Return the interval of survival on the log-log scale, given its relative standard error; NaN at 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = np.exp(float(special.ndtri((1 + level) / 2)) * relative / np.abs(np.log(survival)))
        low, high = survival**reach, survival ** (1 / reach)
    low[(survival == 0) | (survival == 1)] = np.nan
    high[np.isnan(low)] = np.nan
    return low, high


class FittedCox:
    """Cox model of clients whose tables and sums are known; `min_cell` coarsens their times.

    With `bits`, sums over clients are those of fixed-point numbers, as with masks.
    """

    def __init__(self, problem: Problem, estimates: Estimates, min_cell: int = 0, bits: int | None = None) -> None:
        assert isinstance(problem.loss, Cox)
        self.ties, self.design, self.sizes = problem.loss.ties, estimates.design, problem.data.sizes.tolist()
        w = estimates.design.start.copy()
        w[estimates.design.columns] = estimates.weights
        self.names = list(problem.clients or (f"client {m}" for m in range(problem.data.clients)))
        self.shift = _shift(problem, w)
        self.clients: ClientSurvival
        if isinstance(problem.data, RemoteRows):
            self.clients = problem.data.survival(w, estimates.design.columns, min_cell)
        else:
            self.clients = LocalSurvival(problem, w, estimates.design.columns, min_cell, bits)

    @cached_property
    def tables(self) -> dict[int, RiskTable]:
        """Risk tables of the clients that have one."""
        return self.clients.tables()

    @property
    def withheld(self) -> list[str]:
        """Clients that have too few rows for a coarsened curve, or do not share it."""
        return [name for m, name in enumerate(self.names) if m not in self.tables]

    @property
    def longest(self) -> float | None:
        """Longest time of a table, None without tables."""
        return max((float(table.times[-1]) for table in self.tables.values()), default=None)

    def survival_lines(self, level: float) -> list[dict[str, Any]]:
        """Return a line per client and time of the Kaplan-Meier curves."""
        lines = []
        for m, table in self.tables.items():
            columns = {
                "time": table.times, "at_risk": table.at_risk.astype(int), "events": table.events.astype(int),
                "censored": table.censored.astype(int), **kaplan_meier(table, level)._asdict(),
            }  # fmt: skip
            lines += _lines(columns, client=self.names[m])
        return lines

    def baseline_lines(self) -> list[dict[str, Any]]:
        """Return a line per client and time of the baseline hazards.

        `cumulative_hazard` refers to a row whose features are 0 in the units of the table, the columns `at_means` to a
        row with the mean features of all clients.
        """
        total, lines = self.clients.total_score(), []
        mean = np.nan if total is None else total / sum(self.sizes)
        for m, table in self.tables.items():
            hazard = np.cumsum(hazard_steps(table, self.ties))
            at_means = hazard * np.exp(mean)
            with np.errstate(over="ignore"):
                at_zero = hazard * np.exp(-self.shift)
            columns = {
                "time": table.times, "events": table.events.astype(int), "cumulative_hazard": at_zero,
                "cumulative_hazard_at_means": at_means, "survival_at_means": np.exp(-at_means),
            }  # fmt: skip
            lines += _lines(columns, client=self.names[m])
        return lines

    def calibration_lines(self, horizon: float, level: float) -> list[dict[str, Any]]:
        """Return the mean predicted risk and the Kaplan-Meier estimate of the risk, by group of predicted risk.

        The rows of every client are grouped. A group of all clients consists of neighboring groups of clients, whose
        observed risks are averaged: curves of different clients are not mixed.
        """
        by_client = self.clients.calibration(horizon)
        if not by_client:
            return []
        points = np.concatenate(list(by_client.values()))
        lines = _calibration_lines(merged_groups(points, -(-len(points) // len(by_client))), level, client=ALL_CLIENTS)
        if len(self.names) > 1:
            for m, groups in by_client.items():
                lines += _calibration_lines(groups, level, client=self.names[m])
        return lines


def merged_groups(points: Array, most: int) -> Array:
    """Return at most `most` groups [G, 6] of neighboring points [K, 6] with about as many rows and enough events."""
    points = points[np.argsort(points[:, 3], kind="stable")]
    rows, events = points[:, 0], points[:, 1].sum()
    groups = max(1, min(MAX_GROUPS, int(events) // EVENTS_PER_GROUP, most))
    middle = np.cumsum(rows) - rows / 2
    member = np.minimum((middle * groups / rows.sum()).astype(int), groups - 1)
    merged = []
    for group in np.unique(member):
        own = points[member == group]
        share = own[:, 0] / own[:, 0].sum()
        survival = float(share @ own[:, 4])
        variance = float(share**2 @ (own[:, 4] ** 2 * own[:, 5]))
        relative = variance / survival**2 if survival > 0 else 0.0
        merged.append([*own[:, :3].sum(axis=0), float(share @ own[:, 3]), survival, relative])
    return np.array(merged)


def _calibration_lines(groups: Array, level: float, client: str) -> list[dict[str, Any]]:
    survival = groups[:, 4]
    low, high = interval_of(survival, np.sqrt(groups[:, 5]), level)
    columns = {
        "group": np.arange(1, len(groups) + 1), "rows": groups[:, 0].astype(int), "events": groups[:, 1].astype(int),
        "at_risk": groups[:, 2].astype(int), "predicted": groups[:, 3], "observed": 1 - survival,
        "low": 1 - high, "high": 1 - low,
    }  # fmt: skip
    return _lines(columns, client=client)


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
