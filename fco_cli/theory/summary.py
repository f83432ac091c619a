"""Summary table of the cells: violations, slack and slopes of each statement."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fco_cli.csv_writer import as_csv
from fco_cli.theory.statements import STATEMENTS, Cell, Grid

AXES = {"rounds": "R", "steps": "K", "clients": "M", "rate": "eta"}


def sweep(cells: list[Cell], grid: Grid, statement: str, axis: str) -> list[Cell]:
    """Return the cells of a statement along one axis through the base cell."""
    base = dict(zip(AXES, grid.base, strict=True))
    others = [key for key in AXES if key != axis]
    return [
        cell for cell in cells if cell.statement == statement and all(getattr(cell, key) == base[key] for key in others)
    ]


@dataclass(frozen=True)
class Row:
    """Row of the summary table: one statement."""

    statement: str
    cells: int
    violated: int
    smallest_slack: float
    median_slack: float
    slopes: dict[str, tuple[float, float]]  # axis -> (slope of the measurement, slope of the bound)


def summarize(cells: list[Cell], grid: Grid) -> list[Row]:
    """Return one row per statement."""
    rows = []
    for statement in STATEMENTS:
        selected = [cell for cell in cells if cell.statement == statement]
        slack = np.array([cell.slack for cell in selected])
        slack = slack[np.isfinite(slack)]
        violated = sum(not cell.holds for cell in selected)
        slopes = {axis: _slopes(sweep(cells, grid, statement, axis), axis) for axis in AXES}
        rows.append(Row(statement, len(selected), violated, float(slack.min()), float(np.median(slack)), slopes))
    return rows


def _slopes(line: list[Cell], axis: str) -> tuple[float, float]:
    """Return the slopes of measurement and bound on logarithmic axes, by least squares."""
    line = [cell for cell in line if cell.measured > 0 and cell.bound > 0]
    if len(line) < 2:
        return np.nan, np.nan
    x = np.log([getattr(cell, axis) for cell in line])
    measured, bound = ([getattr(cell, key) for cell in line] for key in ("measured", "bound"))
    return float(np.polyfit(x, np.log(measured), 1)[0]), float(np.polyfit(x, np.log(bound), 1)[0])


def cells_csv(cells: list[Cell]) -> str:
    """Return a CSV table with one line per cell."""
    header = [*asdict(cells[0]), "slack", "holds"]
    return as_csv(header, ([*asdict(cell).values(), cell.slack, cell.holds] for cell in cells))


def summary_rows(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table as text; slopes are written measurement / bound."""
    header = ["statement", "cells", "violated", "smallest slack", "median slack"]
    header += [f"slope in {symbol}" for symbol in AXES.values()]
    body = []
    for row in rows:
        numbers = [f"{row.cells}", f"{row.violated}", f"{row.smallest_slack:.3g}", f"{row.median_slack:.3g}"]
        body.append([row.statement, *numbers, *(f"{a:.2f} / {b:.2f}" for a, b in row.slopes.values())])
    return header, body


def summary_markdown(rows: list[Row]) -> str:
    """Return the summary table in Markdown."""
    header, body = summary_rows(rows)
    lines = [header, ["---"] * len(header), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
