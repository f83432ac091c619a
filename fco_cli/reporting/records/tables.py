"""Tables of runs for further analysis: a row per run or per evaluated round, with every key of the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fco_cli.reporting.records.runs import RecordedRun
    from fco_cli.reporting.records.studies import RecordedStudy


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists become JSON text."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result |= flatten(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return result


def runs_table(studies: Iterable[RecordedStudy]) -> pd.DataFrame:
    """Return a row per run: identity, status, final metrics and configuration under dotted names."""
    import pandas as pd

    return pd.DataFrame([_row(study, run, run.final) for study, run in _distinct_runs(studies)])


def rounds_table(studies: Iterable[RecordedStudy]) -> pd.DataFrame:
    """Return a row per evaluated round: its metrics, and the identity, status and configuration of its run."""
    import pandas as pd

    pairs = list(_distinct_runs(studies))
    curves = [run.curves for _, run in pairs]
    lengths = [len(curve["round"]) for curve in curves]
    rows = pd.DataFrame([_row(study, run, {}) for study, run in pairs])
    metrics = {
        name: np.concatenate([curve.get(name, np.full(n, np.nan)) for curve, n in zip(curves, lengths, strict=True)])
        for name in dict.fromkeys(name for curve in curves for name in curve)
    }
    return rows.loc[rows.index.repeat(lengths)].reset_index(drop=True).assign(**metrics)


def _distinct_runs(studies: Iterable[RecordedStudy]) -> list[tuple[RecordedStudy, RecordedRun]]:
    """Return every run once, with its first study; a baseline may be in several studies."""
    distinct: dict[Path, tuple[RecordedStudy, RecordedRun]] = {}
    for study in studies:
        for run in study.runs:
            distinct.setdefault(run.folder, (study, run))
    return list(distinct.values())


def _row(study: RecordedStudy, run: RecordedRun, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    psi = run.config["regularizer"]
    strength = psi.get("strength", psi.get("radius"))
    row = {
        "experiment": study.name,
        "profile": study.profile,
        "study": study.slug,
        "task": run.config["task"]["name"],
        "algo": run.algo,
        "regularizer": psi["name"],
        "strength": strength if is_number(strength) or strength is None else printable(strength),
        "client_lr": run.client_lr,
        "server_lr": run.server_lr,
        "seed": run.seed,
        "status": run.status,
        "diverged_round": run.result["diverged_round"],
        "rounds": run.result["rounds"],
        "seconds": run.result["seconds"],
        "optimality_gap": run.optimality_gap,
        "run_id": run.run_id,
        "folder": printable(str(run.folder), max_length=4096),
    }
    ends = {key: run.result.get(key) or {} for key in ("test", "convergence")}
    return row | _without_known(metrics, row) | _without_known(flatten(ends) | flatten(run.config), {**row, **metrics})


def _without_known(more: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name not in known}
