"""Values of runs: the numbers that a sweeper optimizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.config import Run
from fco_cli.config.search import Objective, objectives_of
from fco_cli.errors import require
from fco_cli.simulation.execute import PAUSED

if TYPE_CHECKING:
    from fco_cli.sweeps.run import Sweep

Value = float | list[float]


def values_of(sweep: Sweep) -> list[Value | Exception]:
    """Return the value of each job of a sweep, or the exception of one that failed.

    The value is the final objective, or with the `search` keys the metric, or the list of metrics, that they name. A
    diverged run has infinity, negative for a metric to be maximized.
    """
    results = sweep.outcome.results
    return [value_of(run, results[run.run_id]) if run.run_id in results else sweep.failure for run in sweep.runs]


def value_of(run: Run, result: dict[str, Any]) -> Value:
    """Return the value of a run; that of the round `search.until` if the run belongs to a search."""
    objectives = objectives_of(run.search, None if run.search.until is None else run.experiment)
    if run.pause_at is not None:
        values = _at_round(run.folder, result, run.pause_at, objectives)
    elif result["status"] == "diverged":
        values = [math.nan] * len(objectives)
    else:
        values = [_final(run.folder, result, objective) for objective in objectives]
    known = [value if math.isfinite(value) else one.worst for value, one in zip(values, objectives, strict=True)]
    return known if isinstance(run.search.metric, list) else known[0]


def _final(folder: Path, result: dict[str, Any], objective: Objective) -> float:
    numbers = {**result["final"], **result["test"], "rounds": result["rounds"]}
    require(objective.metric in numbers, "search.metric", objective.metric, "one of " + ", ".join(numbers))
    if objective.last > 1 and objective.metric in result["final"]:
        from fco_cli.reporting.records.runs import read_record  # late: a single run does not need it
        from fco_cli.reporting.records.select import window_mean

        return window_mean(read_record(folder), objective.metric, objective.last)
    return _number(numbers[objective.metric])


def _at_round(folder: Path, result: dict[str, Any], last: int, objectives: Sequence[Objective]) -> list[float]:
    """Return the metrics of a round; NaN if the run diverged before."""
    if result["status"] == PAUSED:
        metrics = {name: _number(value) for name, value in result["final"].items()}
    else:
        from fco_cli.reporting.records.runs import read_record
        from fco_cli.reporting.records.select import finite_mean

        curves = read_record(folder).curves
        row = curves["round"] == last
        metrics = {name: finite_mean(np.asarray(column)[row]) for name, column in curves.items()}
    for objective in objectives:
        allowed = "a column of metrics.csv with search.pruning=halving"
        require(objective.metric in metrics, "search.metric", objective.metric, allowed)
    return [metrics[objective.metric] for objective in objectives]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
