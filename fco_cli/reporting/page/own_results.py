"""Results on the user's own data at the top of the page: chosen models of paths, best runs of other studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.page.tables import as_text
from fco_cli.reporting.records.design import is_shipped
from fco_cli.reporting.records.paths import CHOICES, RecordedPath
from fco_cli.reporting.records.select import Cell, Choice, Spread
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.text import printable

if TYPE_CHECKING:
    from pandas import DataFrame

SIZE = "nonzeros"
QUALITY = {"auc": "AUC", "r2": "R²"}
MAX_RESULTS = 6  # tables in the summary; the sections below show all


def own_results(
    paths: list[RecordedPath], studies: list[RecordedStudy], choices: dict[str, dict[str, Choice]]
) -> list[dict[str, Any]]:
    """Return a heading and a small table for every path and every study outside the shipped experiments."""
    sections = [(path.slug, path.heading, path_summary(path)) for path in paths]
    sections += [
        (study.slug, study.heading, study_summary(study, choices[study.slug]))
        for study in studies
        if not is_shipped(study)
    ]
    return [
        {"slug": slug, "heading": heading, "columns": list(table.columns), "rows": as_text(table).to_numpy().tolist()}
        for slug, heading, table in sections[:MAX_RESULTS]
    ]


def path_summary(path: RecordedPath) -> DataFrame:
    """Return a row per chosen model: strength, cross-validated loss, size, and quality out of fold and on test rows."""
    import pandas as pd

    rows = []
    for choice in CHOICES:
        chosen = path.result["chosen"][choice]
        numbers = path.table.iloc[chosen["place"]].to_dict() | chosen  # values of the refitted model take precedence
        row: dict[str, object] = {"chosen": choice, path.parameter: numbers[path.parameter]}
        row |= {"CV loss": numbers["cv_loss"], "standard error": numbers["cv_error"]}
        row |= {name: numbers[name] for name in (SIZE, "rank") if name in numbers}
        lines = path.clients[path.clients["choice"] == choice]  # the first row is for all clients together
        if path.metric != "loss" and len(lines):
            row[f"{QUALITY.get(path.metric, path.metric)} out of fold"] = lines[path.metric].iloc[0]
        row |= {_heading(name): value for name, value in _test(chosen).items()}
        rows.append(
            {name: value if isinstance(value, str) or is_number(value) else None for name, value in row.items()}
        )
    return pd.DataFrame(rows)


def study_summary(study: RecordedStudy, choices: dict[str, Choice]) -> DataFrame:
    """Return a row per algorithm at its best learning rates: convergence, size, and metrics at the end."""
    import pandas as pd

    cells = [choice.best for choice in choices.values()]
    tests = dict.fromkeys(name for cell in cells if cell for run in cell.runs for name in _test(run.result))
    metrics = [metric for metric in study.panels if metric != "kkt_residual"]
    rows = []
    for algo, cell in zip(choices, cells, strict=True):
        row: dict[str, object] = {"algorithm": algorithm_style(algo).label}
        row["learning rates"] = cell.rates if cell else None
        row["converged"] = _converged(cell) if cell else "diverged"
        row |= {SIZE: cell.final(SIZE, 1)} if cell and cell.has(SIZE) else {}
        row |= {_heading(name): _spread(cell, name) for name in tests if cell}
        row |= {metric_style(name).label: cell.final(name, 1) for name in metrics if cell and cell.has(name)}
        rows.append(row)
    return pd.DataFrame(rows).astype(object)


def _heading(name: str) -> str:
    return printable(name.replace("_", " "))


def _test(result: dict[str, Any]) -> dict[str, Any]:
    test = result.get("test")
    return test if isinstance(test, dict) else {}


def _spread(cell: Cell, name: str) -> Spread | None:
    values = [_test(run.result).get(name) for run in cell.runs]
    return Spread.of(np.array(values, dtype=float)) if all(map(is_number, values)) else None


def _converged(cell: Cell) -> str:
    """Return "yes" or "no"; empty if the records lack the information."""
    verdicts = [run.result.get("convergence") for run in cell.runs]
    known = [verdict.get("converged") for verdict in verdicts if isinstance(verdict, dict)]
    if len(known) < len(verdicts) or not all(isinstance(one, bool) for one in known):
        return ""
    return "yes" if all(known) else "no"
