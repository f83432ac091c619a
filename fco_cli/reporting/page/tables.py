"""Tables of the page: chosen configurations, also as Markdown, CSV and LaTeX (booktabs), and the user's own results.

The results on the user's own data are the chosen models of paths and the best runs of other studies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.objects import Table
from fco_cli.reporting.records.design import is_shipped
from fco_cli.reporting.records.glm import RecordedGlm
from fco_cli.reporting.records.glm import caption as fit_caption
from fco_cli.reporting.records.paths import CHOICES, RecordedPath
from fco_cli.reporting.records.select import (
    TARGET_SHARE,
    Cell,
    Choice,
    Spread,
    arrival,
    describe_spread,
    finite_mean,
    target,
)
from fco_cli.reporting.records.studies import RecordedStudy, Results
from fco_cli.reporting.records.validation import is_number
from fco_cli.reporting.style import algorithm_style, metric_style
from fco_cli.reporting.text import for_latex, for_markdown, printable

if TYPE_CHECKING:
    import pandas as pd
    from pandas import DataFrame

SIZE = "nonzeros"
QUALITY = {"auc": "AUC", "r2": "R²"}
WHOLE = 1e9  # whole numbers below it are printed with all digits, such as rounds
MAX_RESULTS = 6  # tables in the summary; the sections below show all


def best_table(study: RecordedStudy, choices: dict[str, Choice]) -> pd.DataFrame:
    """Return a row per algorithm: best learning rates, final metrics, and rounds and megabytes to the target."""
    import pandas as pd

    level = target(study, choices)
    return pd.DataFrame([_row(study, algo, choice, list(choices.values()), level) for algo, choice in choices.items()])


def _row(
    study: RecordedStudy, algo: str, choice: Choice, others: list[Choice], level: float | None
) -> dict[str, object]:
    best, window = choice.best, study.rule.last
    row: dict[str, object] = {"algorithm": algorithm_style(algo).label}
    row["client lr"] = None if best is None else best.client_lr
    row["server lr"] = None if best is None else best.server_lr
    if any(cell.options for other in others for cell in other.cells):
        row["options"] = None if best is None else best.options
    score = f"{metric_style(study.rule.metric).label} (last {window})" if window > 1 else None
    if score:
        row[score] = None if best is None else best.final(study.rule.metric, window)
    for metric in study.panels:
        row[metric_style(metric).label] = None if best is None else best.final(metric, 1)
    if any(run.optimality_gap is not None for run in study.runs):
        row["optimality gap"] = None if best is None else _mean([run.optimality_gap for run in best.runs])
    at = arrival(best, level) if best is not None and level is not None and choice.federated else None
    row["rounds to target"] = at
    row["MB to target"] = None if at is None or best is None else _megabytes(best, at)
    row["seconds"] = None if best is None else _mean([run.result["seconds"] for run in best.runs])
    row["seeds"] = len({run.seed for run in study.of(algo)})
    row["tied"] = len(choice.tied)
    if any(other.on_edge for other in others):
        row["on the edge of its grid"] = ", ".join(choice.on_edge)
    row["diverged"] = f"{choice.diverged} of {len(choice.cells)}"
    return row


def _mean(values: list[float | None]) -> float:
    return finite_mean(np.array(values, dtype=float))  # None becomes NaN


def _megabytes(cell: Cell, at: float) -> float:
    run = cell.runs[0]
    return float(run.megabytes[run.curves["round"] == at][0])


def caption(study: RecordedStudy, choices: dict[str, Choice]) -> str:
    """Return the caption of a study's table: selection rule, target and spread."""
    level = target(study, choices)
    best = "largest" if study.rule.mode == "max" else "smallest"
    text = f"{study.heading}. Learning rates chosen by the {best} {study.rule}; metrics are those of the last round."
    if level is not None:
        name = metric_style(study.rule.metric).label
        text += f" Target: {name} {level:.4g}, {TARGET_SHARE:.0%} of the way from the start to the best."
    if spread := describe_spread(study):
        text += f" Metrics: {spread}."
    return text


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with every value formatted as text."""
    return table.map(_text).rename(columns=str)


def _text(value: object) -> str:
    if isinstance(value, str | Spread):
        return str(value) if value != "" else "–"
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if is_number(value) and abs(float(value)) < WHOLE and float(value).is_integer():  # type: ignore[arg-type]
        return str(int(value))  # type: ignore[call-overload]
    return f"{value:.4g}"


def as_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with median, low and high of every range in separate columns."""
    import pandas as pd

    columns: dict[str, list[object]] = {}
    for name in table.columns:
        values = list(table[name])
        if any(isinstance(value, Spread) and value.low != value.high for value in values):
            for part in Spread._fields:
                columns[f"{name} {part}"] = [getattr(value, part, value) for value in values]
        else:
            columns[name] = [getattr(value, "median", value) for value in values]
    return pd.DataFrame(columns)


def as_markdown(table: pd.DataFrame) -> str:
    """Return the table as Markdown."""
    text = as_text(table)
    rows = [list(text.columns), ["---"] * len(text.columns), *text.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(for_markdown, row)) + " |" for row in rows) + "\n"


def as_latex(table: pd.DataFrame, title: str) -> str:
    """Return the table as LaTeX, for the package booktabs."""
    text = as_text(table)
    rows = [" & ".join(map(for_latex, row)) + r" \\" for row in text.to_numpy().tolist()]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{for_latex(title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(text.columns) - 1)}}}",
        r"\toprule",
        " & ".join(map(for_latex, text.columns)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def own_results(
    results: Results, studies: list[RecordedStudy], choices: dict[str, dict[str, Choice]]
) -> list[dict[str, Any]]:
    """Return a heading and a small table for every fit, path and study outside the shipped experiments."""
    sections = [
        (glm.slug, printable(fit_caption(glm.result), max_length=400), fit_summary(glm)) for glm in results.glms
    ]
    sections += [(path.slug, path.heading, path_summary(path)) for path in results.paths]
    sections += [
        (study.slug, study.heading, study_summary(study, choices[study.slug]))
        for study in studies
        if not is_shipped(study)
    ]
    return [
        {"slug": slug, "heading": heading, "columns": list(table.columns), "rows": as_text(table).to_numpy().tolist()}
        for slug, heading, table in sections[:MAX_RESULTS]
    ]


def fit_summary(glm: RecordedGlm) -> DataFrame:
    """Return a row with the size of a fit and the test of all its terms."""
    import pandas as pd

    result = glm.result
    test = result.get("test") or {}
    row = {"rows": result["rows"], "clients": result["clients"], "coefficients": len(result["coefficients"])}
    numbers = {"deviance": result.get("deviance"), "deviance of the null model": result.get("null_deviance")}
    numbers |= {"p of all terms": test.get("p")}
    return pd.DataFrame([row | {name: value for name, value in numbers.items() if is_number(value)}])


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
        if path.metric not in ("", "loss") and len(lines):
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


def card_table(lines: list[list[str]]) -> Table:
    """Return a model card as a folded table."""
    import pandas as pd

    frame = pd.DataFrame([[printable(cell, max_length=4000) for cell in line] for line in lines])
    return Table(frame.set_axis(["", "item", "text"], axis=1), caption="model card", folded=True)
