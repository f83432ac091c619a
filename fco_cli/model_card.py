"""Model cards: the items of TRIPOD+AI that a record states.

A card is a list of lines (section, item, text), made from the configuration and the result of a record. It states
nothing that the record does not contain, and lists what the authors must add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from scipy import special

from fco_cli.data.format import format_list, shown
from fco_cli.data.preparation import Preparation
from fco_cli.data.readers.source import Columns
from fco_cli.problem.losses.classification import area_interval

Line = tuple[str, str, str]  # section, item, text
NOT_RECORDED = (
    "setting and dates of the data; eligibility of participants; who measured the outcome and how; intended use and "
    "users; ethics approval; fairness across groups of people; clinical usefulness"
)
MODELS = {
    "squared": "linear regression", "logistic": "logistic regression", "softmax": "multinomial logistic regression",
    "poisson": "Poisson regression", "cox": "Cox regression, stratified by client", "huber": "robust linear regression",
}  # fmt: skip
FILLS = {"mean": "means of the training rows", "median": "medians of the training rows"}
WEIGHTINGS = {"examples": "every row counts once", "uniform": "every client counts once"}
MAX_CLIENTS = 50  # lines about single clients


def card_lines(
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    columns: Columns | None,
    preparation: Preparation | None,
    performance: Sequence[Mapping[str, Any]],
    parameters: int,
    method: Sequence[tuple[str, str]],
    not_done: Sequence[str],
    events: int | None = None,
) -> list[Line]:
    """Return the lines of a card.

    `columns` are the roles of the columns of a table; `performance` are metrics of all clients and of every client,
    with a key `how`; `parameters` are those that were candidates for the model, without intercepts; `method` are items
    about the fit, and `not_done` are remarks on missing analyses; `events` are those of a Cox model, if known.
    """
    task, loss = config["task"], result["loss"]
    lines = [("Data", "source", _source(config)), ("Data", "rows", f"{result['rows']:,} training rows")]
    lines.append(("Data", "clients", _clients(config, result, columns)))
    lines.append(("Outcome", "label", _label(columns)))
    lines += _events(performance, loss, parameters, result["rows"], events)
    lines += [("Predictors", item, text) for item, text in _predictors(task, preparation)]
    lines += [("Preparation", item, text) for item, text in _preparation(task, preparation)]
    lines.append(("Model", "kind", MODELS.get(loss, f"linear model, {loss} loss")))
    lines.append(("Model", "weights of rows", WEIGHTINGS.get(result["weighting"], result["weighting"])))
    lines += [("Model", item, text) for item, text in method]
    lines += [("Performance", item, text) for item, text in _performance(performance)]
    lines += [("Not done", "", text) for text in (*_imputation(task, preparation), *not_done)]
    lines.append(("Not recorded", "to be added by the authors", NOT_RECORDED))
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines.append(("Software", "versions", f"Python {result['python']}, {versions}"))
    if result.get("git_revision"):
        lines.append(("Software", "revision", str(result["git_revision"])))
    lines.append(
        ("Software", "record", f"{result['run_id']}, seed {result['seed']}; data {result['identity']['data']}")
    )
    return lines


def as_markdown(lines: Sequence[Sequence[str]], title: str) -> str:
    """Return a card as a Markdown document."""
    text = [f"# Model card: {_plain(title)}"]
    for section, own in groupby(lines, key=lambda line: line[0]):
        text += ["", f"## {section}"]
        text += [f"- **{_plain(item)}:** {_plain(value)}" if item else f"- {_plain(value)}" for _, item, value in own]
    return "\n".join(text) + "\n"


def _plain(text: str) -> str:
    """Return a text in which Markdown finds no marks."""
    return "".join(f"\\{character}" if character in "\\`*_<>[]#|" else character for character in shown(text, 4000))


def _source(config: Mapping[str, Any]) -> str:
    task, federation = config["task"], config["federation"]
    if federation["name"] != "none":
        masks = "masked sums only" if federation.get("masks") else "sums of every site"
        return f"tables at {len(federation['sites'])} sites, which sent {masks}"
    path = task.get("path")
    return f"table {Path(path).name}" if path else f"task {task['name']}"


def _clients(config: Mapping[str, Any], result: Mapping[str, Any], columns: Columns | None) -> str:
    is_here = config["federation"]["name"] == "none"
    where = f" (column {columns.client})" if columns is not None and columns.client and is_here else ""
    least = config["task"].get("min_samples")
    dropped = f"; clients with fewer than {least} rows were left out" if least else ""
    return f"{result['clients']:,}{where}{dropped}"


def _label(columns: Columns | None) -> str:
    if columns is None:
        return "defined by the task"
    return f"{columns.label}; event: {columns.event}" if columns.event else str(columns.label)


def _events(
    performance: Sequence[Mapping[str, Any]], loss: str, parameters: int, rows: int, events: int | None
) -> list[Line]:
    """Return numbers of events and rows per parameter."""
    lines = []
    per = f"{rows / max(parameters, 1):.1f} rows"
    total = next((line for line in performance if line.get("observed") is not None), None)
    if loss == "logistic" and total is not None:
        events = round(total["rows"] * total["observed"])
        lines.append(("Outcome", "events", f"{events:,} of {total['rows']:,} rows ({100 * total['observed']:.1f} %)"))
        per += f" and {min(events, total['rows'] - events) / max(parameters, 1):.1f} rows of the smaller class"
    elif loss == "cox" and events is not None:
        lines.append(("Outcome", "events", f"{events:,} in {rows:,} rows, the others are censored"))
        per += f" and {events / max(parameters, 1):.1f} events"
    lines.append(("Sample size", "candidate parameters", f"{parameters:,}; {per} for each"))
    return lines


def _predictors(task: Mapping[str, Any], preparation: Preparation | None) -> list[tuple[str, str]]:
    if preparation is None:
        return [("columns", "those of the table")]
    items = [("columns", f"{len(preparation.columns):,}: {format_list(preparation.columns, 200)}")]
    if task.get("formula"):
        items.append(("formula", str(task["formula"])))
    for key in ("offset", "exposure"):
        if task.get(key):
            items.append((key, str(task[key])))
    if task.get("drop"):
        items.append(("columns of the table that were not used", format_list(task["drop"], 200)))
    return items


def _preparation(task: Mapping[str, Any], preparation: Preparation | None) -> list[tuple[str, str]]:
    """Return items about missing values, categories and scales."""
    if preparation is None:
        return [("rows", "as in the table")]
    fill = task.get("fill")
    items = [
        ("missing values", "none were allowed" if fill == "refuse" else f"replaced by {FILLS.get(fill or '', fill)}")
    ]
    items.append(("numbers of missing values", "not in this record; experiment=table1 counts them"))
    if preparation.flagged:
        items.append(("indicators of missing values", format_list(preparation.flagged, 50)))
    if preparation.categories:
        named = [f"{column} ({len(levels.names)})" for column, levels in preparation.categories.items()]
        rare = (
            f"; categories of fewer than {task['min_count']} rows were merged" if task.get("min_count", 1) > 1 else ""
        )
        items.append(("categories", f"{format_list(named, 50)}{rare}"))
    if preparation.constant:
        items.append(("constant features, left out", format_list(preparation.constant, 50)))
    scaled = "standardized with moments of all training rows" if preparation.mean else "in the units of the table"
    items.append(("scale of the features", scaled))
    return items


def _imputation(task: Mapping[str, Any], preparation: Preparation | None) -> list[str]:
    if preparation is None or task.get("fill") == "refuse":
        return []
    return ["Multiple imputation: missing values were filled once, and no interval includes their uncertainty."]


def _performance(performance: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return an item for all clients and for every client."""
    items = [(f"{line['client']}, {line['how']}", describe_metrics(line)) for line in performance[: MAX_CLIENTS + 1]]
    if len(performance) > MAX_CLIENTS + 1:
        items.append(("other clients", f"{len(performance) - MAX_CLIENTS - 1} more, in the table of the record"))
    return items or [("all clients", "not computed")]


def describe_metrics(line: Mapping[str, Any], level: float = 0.95) -> str:
    """Return the metrics of a client in one line, with intervals where the record has standard errors."""
    reach = float(special.ndtri((1 + level) / 2))
    parts = [f"{line['rows']:,} rows"]
    names = {
        "auc": "AUC", "auc_within": "AUC within clients", "calibration_slope": "calibration slope",
        "calibration_intercept": "calibration intercept", "accuracy": "accuracy", "r2": "R²", "rmse": "RMSE",
        "mae": "MAE", "d2": "D²", "concordance": "concordance", "loss": "loss",
    }  # fmt: skip
    for key, name in names.items():
        value, error = line.get(key), line.get(f"{key}_error")
        if value is None or value != value:
            continue
        ends = ""
        if error is not None and error == error:
            low, high = value - reach * error, value + reach * error
            if key == "auc":
                low, high = map(float, area_interval(value, error, level))
            ends = f" ({100 * level:g} % interval {low:.3g} to {high:.3g})"
        parts.append(f"{name} {value:.3g}{ends}")
    if line.get("observed") is not None:
        parts.append(f"events {100 * line['observed']:.1f} %, predicted {100 * line['predicted']:.1f} %")
        if line.get("auc") is None:
            parts.append("no AUC: rows of one class only")
    return ", ".join(parts)
