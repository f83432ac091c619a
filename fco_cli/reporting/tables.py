"""Tables of the chosen configurations, as Markdown, CSV and LaTeX (booktabs)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting.results import Study
from fco_cli.reporting.select import Cell, Choice
from fco_cli.reporting.style import BASELINES, algorithm_style, metric_style

if TYPE_CHECKING:
    import pandas as pd

TARGET_SHARE = 0.9  # of the way from the start to the best score


def target(study: Study, choices: dict[str, Choice]) -> float | None:
    """What counts as arrived: the selection metric, most of the way from its start to the best federated score."""
    chosen = [choice.best for algo, choice in choices.items() if choice.best is not None and algo not in BASELINES]
    if not chosen:
        return None
    pick = max if study.rule.mode == "max" else min
    start, best = chosen[0].curve(study.rule.metric)[1][0], pick(cell.score for cell in chosen)
    return float(start + TARGET_SHARE * (best - start))


def arrival(cell: Cell, level: float) -> int | None:
    """The index of the first evaluated round at which the cell's mean curve is at the target."""
    _, mean, _ = cell.curve(cell.rule.metric)
    there = mean >= level if cell.rule.mode == "max" else mean <= level
    return int(np.argmax(there)) if there.any() else None


def best_table(study: Study, choices: dict[str, Choice]) -> pd.DataFrame:
    """A row per algorithm: its best learning rates, how it ended, how soon and at what cost it arrived."""
    import pandas as pd

    level = target(study, choices)
    return pd.DataFrame([_row(study, algo, choice, level) for algo, choice in choices.items()])


def _row(study: Study, algo: str, choice: Choice, level: float | None) -> dict[str, object]:
    best, window = choice.best, study.rule.last
    row: dict[str, object] = {"algorithm": algorithm_style(algo).label}
    row["client lr"] = None if best is None else best.client_lr
    row["server lr"] = None if best is None else best.server_lr
    score = f"{metric_style(study.rule.metric).label} (last {window})" if window > 1 else None
    if score:
        row[score] = None if best is None else best.score
    for metric in study.panels:
        row[metric_style(metric).label] = None if best is None else best.mean(metric, 1)
    at = arrival(best, level) if best is not None and level is not None and algo not in BASELINES else None
    row["rounds to target"] = None if at is None or best is None else best.curve(study.rule.metric)[0][at]
    row["MB to target"] = None if at is None or best is None else best.runs[0].megabytes[at]
    row["seconds"] = None if best is None else np.mean([run.result.get("seconds", np.nan) for run in best.runs])
    row["seeds"] = len({run.seed for run in study.of(algo)})
    row["tied"] = len(choice.tied)
    row["diverged"] = f"{choice.diverged} of {len(choice.cells)}"
    return row


def caption(study: Study, choices: dict[str, Choice]) -> str:
    """What a reader must know of the table."""
    level = target(study, choices)
    best = "largest" if study.rule.mode == "max" else "smallest"
    text = f"{study.heading}. Learning rates chosen by the {best} {study.rule}; metrics are those of the last round."
    if level is not None:
        name = metric_style(study.rule.metric).label
        text += f" Target: {name} {level:.4g}, {TARGET_SHARE:.0%} of the way from the start to the best."
    return text


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Every value as people want to read it."""
    return table.map(_text).rename(columns=str)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.4g}"


def as_markdown(table: pd.DataFrame) -> str:
    """A Markdown table."""
    text = as_text(table)
    rows = [list(text.columns), ["---"] * len(text.columns), *text.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def as_latex(table: pd.DataFrame, title: str) -> str:
    """A LaTeX table that needs booktabs."""
    plain = {"∂": r"$\partial$", "ψ": r"$\psi$", "–": "--", "%": r"\%", "_": r"\_", "&": r"\&"}

    def escape(text: str) -> str:
        return "".join(plain.get(character, character) for character in text)

    text = as_text(table)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in text.to_numpy().tolist()]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(text.columns) - 1)}}}",
        r"\toprule",
        " & ".join(map(escape, text.columns)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def save_tables(study: Study, choices: dict[str, Choice], folder: Path) -> list[Path]:
    """Write the study's table in all three forms."""
    table, title = best_table(study, choices), caption(study, choices)
    contents = {
        ".md": f"{title}\n\n{as_markdown(table)}",
        ".csv": table.to_csv(index=False),
        ".tex": as_latex(table, title),
    }
    written = [folder / f"{study.slug}{suffix}" for suffix in contents]
    for path, content in zip(written, contents.values(), strict=True):
        write_atomically(path, content.encode())
    return written
