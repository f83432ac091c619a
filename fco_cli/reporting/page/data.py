"""Data of the page's scripts: all runs with reduced curves, and the animations of the chosen runs."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.reporting.page.player import player_of
from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.select import Choice, window_mean
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.style import algorithm_style, metric_style

CURVE_NUMBERS = 60_000  # embedded curve values of all runs together
MAX_POINTS, MIN_POINTS = 80, 6  # per curve


def players_of(
    studies: list[RecordedStudy], choices: dict[str, dict[str, Choice]], damaged: list[tuple[Path, str]]
) -> dict[str, Any]:
    """Return the animations of the studies that have one, by slug; twins have none."""
    styles = _styles(studies)
    return {
        study.slug: player | {"algorithms": styles}
        for study in studies
        if not study.twin_of and (player := player_of(study, choices[study.slug], damaged))
    }


def _styles(studies: list[RecordedStudy]) -> dict[str, Any]:
    return {algo: vars(algorithm_style(algo)) for study in studies for algo in study.algorithms}


def runs_data(studies: list[RecordedStudy]) -> dict[str, Any]:
    """Return the data of the page's script: styles and all runs with reduced curves."""
    metrics = {metric for study in studies for metric in (*study.panels, study.rule.metric)}
    drawn = sum(len(study.panels) + 1 for study in studies for run in study.runs if not run.diverged)
    points = int(np.clip(CURVE_NUMBERS // max(drawn, 1), MIN_POINTS, MAX_POINTS))
    return {
        "algorithms": _styles(studies),
        "metrics": {metric: vars(metric_style(metric)) for metric in sorted(metrics)},
        "runs": [_run_data(study, run, points) for study in studies for run in study.runs],
    }


def _run_data(study: RecordedStudy, run: RecordedRun, points: int) -> dict[str, Any]:
    evaluated = len(run.curves["round"])
    kept = np.unique(np.linspace(0, evaluated - 1, min(evaluated, points)).round().astype(int))
    curves = {metric: run.curves[metric] for metric in ("round", *study.panels) if metric in run.curves}
    return {
        "study": study.slug,
        "algo": run.algo,
        "client_lr": run.client_lr,
        "server_lr": run.server_lr,
        "seed": run.seed,
        "status": run.status,
        "rule": metric_style(study.rule.metric).label,
        "score": _number(window_mean(run, study.rule.metric, study.rule.last)),
        "rounds": run.result["rounds"],
        "gap": _number(run.optimality_gap),
        "megabytes": _number(run.megabytes[-1]),
        "seconds": _number(run.result["seconds"]),
        "id": run.run_id,
        "folder": str(run.folder),
        # The last values of a diverged run are meaningless, and most runs of a large grid diverge.
        "final": {} if run.diverged else {name: _number(value) for name, value in run.final.items()},
        "curves": {}
        if run.diverged
        else {name: [_number(value) for value in values[kept]] for name, values in curves.items()},
    }


def _number(value: Any) -> float | None:
    """Round to four significant digits; return None for non-finite values, which JSON does not support."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")


def compress(data: Any) -> str:
    """Return data for the page's script as base64 of zlib-compressed JSON, which cannot close its HTML element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()
