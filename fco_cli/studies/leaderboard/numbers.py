"""Numbers of the leaderboard's figures, as tables with a row per point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting import settings_of
from fco_cli.studies.leaderboard.method_results import LEVELS, MethodResult, cost_of, final_gap, has_stalled, rounds_to
from fco_cli.studies.leaderboard.tables import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

COSTS = {
    "round": "rounds",
    "megabytes": "sent (MB)",
    "gradients": "gradients of rows",
    "simulated_seconds": "simulated seconds",
    "queries": "queries",
    "prox_calls": "prox calls",
}  # labels of figures by column of metrics.csv
CLIENT_RATE = "client rate × L"
HETEROGENEITY = "task.heterogeneity"
Line = tuple[np.ndarray, np.ndarray]


def recorded_costs(results: list[MethodResult]) -> dict[str, str]:
    """Return the costs that a run has; older records have no queries, and serverless methods no seconds."""
    runs = [run for one in results for run in one.runs]
    return {name: label for name, label in COSTS.items() if any(cost_of(run, name) is not None for run in runs)}


def cost_curve(one: MethodResult, cost: str) -> Line:
    """Return the costs and the median gaps over the seeds; empty arrays if the cost was not recorded."""
    rounds, gaps = one.curves
    costs = cost_of(one.runs[0], cost) if one.runs else None
    if costs is None or not len(gaps):
        return np.array([]), np.array([])
    costs = costs[np.isin(one.runs[0].curves["round"], rounds)]
    shown = np.ones(len(costs), dtype=bool) if cost == "round" else costs > 0
    return costs[shown], np.median(gaps, axis=0)[shown]


def gap_by_rate(one: MethodResult) -> Line:
    """Return the client rates and the final gaps with them; the other settings are those of the best cell."""
    return np.array([rate for rate, _ in one.by_rate]), np.array([final_gap(cell) for _, cell in one.by_rate])


def gap_ratio(one: MethodResult) -> float:
    """Return the final gap of the untuned cell over the best one's; NaN if the best diverged."""
    assert one.untuned is not None
    return final_gap(one.untuned) / one.final if np.isfinite(one.final) else np.nan


def round_ratio(one: MethodResult) -> float:
    """Return the ratio of rounds to the largest level; infinite if only the best reaches it, NaN if it does not."""
    assert one.untuned is not None
    best = float(np.median(rounds_to(one.best, LEVELS[0])))
    return float(np.median(rounds_to(one.untuned, LEVELS[0]))) / max(best, 1) if np.isfinite(best) else np.nan


def by_heterogeneity(problems: list[Problem]) -> dict[float, Problem]:
    """Return the largest set of problems that differ only in heterogeneity, by its value."""
    groups: dict[str, dict[float, Problem]] = {}
    for problem in problems:
        settings = settings_of(problem.study)
        if (step := settings.pop(HETEROGENEITY, None)) is not None:
            groups.setdefault(repr(sorted(settings.items())), {})[float(step)] = problem
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items()))


def problem_numbers(problem: Problem) -> DataFrame:
    """Return the curves of a problem's figure: the gap against each cost, and the final gap against the client rate.

    The range over the seeds is that of the rounds.
    """
    shown = [one for one in problem.methods if one.runs]
    rows: list[tuple[object, ...]] = []
    for one in shown:
        gaps = one.curves[1]
        for cost, label in recorded_costs(shown).items():
            for i, (x, gap) in enumerate(zip(*cost_curve(one, cost), strict=True)):
                spread = (gaps[:, i].min(), gaps[:, i].max()) if cost == "round" else (np.nan, np.nan)
                rows.append((one.label, one.family, label, x, gap, *spread))
        for rate, gap in zip(*gap_by_rate(one), strict=True):
            rows.append((one.label, one.family, CLIENT_RATE, rate, gap, np.nan, np.nan))
    return _frame(rows, "method", "family", "x axis", "x", "gap", "gap low", "gap high")


def map_numbers(problems: list[Problem], number: Callable[[MethodResult], np.ndarray]) -> DataFrame:
    """Return the median of a number of rounds and the final gap, by problem and method."""
    rows = [
        (problem.name, one.label, float(np.median(number(one))), one.final)
        for problem in problems
        for one in problem.methods
    ]
    return _frame(rows, "problem", "method", "rounds", "final gap")


def auto_numbers(problems: list[Problem]) -> DataFrame:
    """Return both ratios of untuned to best, by problem and method."""
    rows = [
        (problem.name, one.label, gap_ratio(one), round_ratio(one))
        for problem in problems
        for one in problem.methods
        if one.untuned
    ]
    return _frame(rows, "problem", "method", "final gap, auto / best", f"rounds to {LEVELS[0]:g}, auto / best")


def cost_numbers(problems: list[Problem], costs: tuple[str, ...]) -> DataFrame:
    """Return the gap against each cost, by problem and method."""
    rows = [
        (problem.name, one.label, COSTS[cost], x, gap)
        for problem in problems
        for one in problem.methods
        for cost in costs
        for x, gap in zip(*cost_curve(one, cost), strict=True)
    ]
    return _frame(rows, "problem", "method", "x axis", "x", "gap")


def heterogeneity_numbers(steps: dict[float, Problem]) -> DataFrame:
    """Return the final gap by heterogeneity and method."""
    rows = [
        (step, one.label, one.final, has_stalled(one.best))
        for step, problem in steps.items()
        for one in problem.methods
    ]
    return _frame(rows, "heterogeneity", "method", "final gap", "rests")


def _frame(rows: Sequence[tuple[object, ...]], *columns: str) -> DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))
