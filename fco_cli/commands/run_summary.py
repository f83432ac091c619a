"""Summary of one run: five rows of numbers, sentences on the result, and a picture of text."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from fco_cli.memory_limit import in_units

OBJECTIVES = {"examples": "every row has the same weight", "uniform": "every client has the same weight"}
MEANING = {
    "density": "share of non-zero weights",
    "rank": "of the matrix of weights",
    "recovery_error": "distance from the true weights",
    "validation_accuracy": "on held-out rows",
    "validation_loss": "on held-out rows",
    "consensus_error": "distance between the clients' models",
}
ROWS = 4  # besides the cost
WIDTH = 48  # of the picture
BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
LARGEST_PICTURE = 4096  # weights


def summary_table(result: dict[str, Any]) -> Table:
    """Return the main numbers of a run: its main metric, three others and its cost."""
    final = result["final"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("meaning")
    held_out = [f"test_{name}" for name in result.get("test", {})]
    values = final | {f"test_{name}": value for name, value in result.get("test", {}).items()}
    preferred = [
        result["main_metric"], *held_out[:1], "density", "rank", "objective", "validation_accuracy", "validation_loss",
        "consensus_error", "train_accuracy", "train_loss",
    ]  # fmt: skip
    for name in [name for name in dict.fromkeys(preferred) if name in values][:ROWS]:
        value = values[name]
        table.add_row(name.replace("_", " "), "not finite" if value is None else f"{value:.4g}", _meaning(name, result))
    rounds = f"{result['rounds']} rounds" if result["rounds"] != 1 else "1 round"
    sent = in_units(int(final["bytes_up"] + final["bytes_down"]))
    up, down = (in_units(int(final[name])) for name in ("bytes_up", "bytes_down"))
    table.add_row("sent", sent, f"{up} up and {down} down in {rounds}, {result['seconds']:.2f} s")
    return table


def _meaning(name: str, result: dict[str, Any]) -> str:
    final = result["final"]
    if name == "objective" and (weighting := result.get("weighting")) in OBJECTIVES:
        return OBJECTIVES[weighting]
    if name == "f1" and None not in (precision := final.get("precision"), recall := final.get("recall")):
        return f"precision {precision:.3g}, recall {recall:.3g}"
    return "on test rows" if name.startswith("test_") else MEANING.get(name, "")


def summary_sentences(result: dict[str, Any]) -> list[str]:
    """Return sentences on the support, for data whose true weights are known, and on the distance to the minimizer."""
    final, verdict = result["final"], result.get("convergence")
    sentences = []
    if None not in (precision := final.get("precision"), recall := final.get("recall")):
        found = "all true weights" if recall == 1 else f"{100 * recall:.3g} % of the true weights"
        false = "no other" if precision == 1 else f"{100 * (1 - precision):.3g} % of its weights are others"
        joined = f"{found}{' and ' if precision == 1 else '; '}{false}" if recall else "none of the true weights"
        sentences.append(f"The model has {joined}.")
    if verdict and "kkt" in verdict:  # older records lack the key
        residual = f"KKT residual {verdict['kkt']:.2g} x {verdict['relative_to']}"
        if verdict["converged"]:
            distance = verdict.get("distance")
            sentences.append(
                "It minimizes the objective" + ("." if distance is None else f", to {distance:.0e} (an estimate).")
            )
        elif verdict.get("more_rounds") is not None:
            sentences.append(f"The objective is not minimized yet ({residual}): {verdict['advice']}.")
        else:
            sentences.append(f"It is not the exact minimizer of the objective ({residual}): {verdict['advice']}.")
    return sentences


def picture(folder: Path, metric: str, is_ascii: bool) -> list[str]:
    """Return lines of text that show the main metric by round and, for one row of weights, their absolute values."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    values = np.array([float(row[metric]) for row in rows])
    lines = []
    if len(values) > 1 and np.isfinite(values).all():
        ends = f"{values[0]:.3g} to {values[-1]:.3g}"
        lines.append(f"{metric.replace('_', ' ')} by round  {_bars(values - min(values.min(), 0), is_ascii)}  {ends}")
    with np.load(folder / "model.npz", allow_pickle=False) as model:
        weights = model["weights"] if "weights" in model.files else np.zeros(0)
    if weights.ndim == 1 and 1 < len(weights) <= LARGEST_PICTURE and np.isfinite(weights).all():
        nonzero = f"{np.count_nonzero(weights)} of {len(weights)} are not 0"
        lines.append(f"absolute weights  {_bars(np.abs(weights), is_ascii)}  {nonzero}")
    return _aligned(lines)


def _bars(values: np.ndarray, is_ascii: bool) -> str:
    """Return a row of bars, the largest value of each of at most `WIDTH` parts; zeros are blank."""
    parts = np.array([part.max() for part in np.array_split(values, min(WIDTH, len(values)))])
    levels = np.ceil(8 * parts / (parts.max() or 1)).astype(int)
    return "|" + "".join((ASCII if is_ascii else BLOCKS)[level] for level in levels) + "|"


def _aligned(lines: list[str]) -> list[str]:
    """Return the lines with equally wide labels."""
    pairs = [line.split("  |", 1) for line in lines]
    width = max((len(label) for label, _ in pairs), default=0)
    return [f"{label:<{width}}  |{rest}" for label, rest in pairs]
