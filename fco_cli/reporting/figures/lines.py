"""Line plots of a table of runs: any column against another, with a line per value of a third."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.errors import require
from fco_cli.reporting.figures.drawing import drawable, line_options, log_ticks
from fco_cli.reporting.style import MARKERS, PALETTE, algorithm_order, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from fco_cli.algorithms.base import Style

ALGORITHM_COLUMNS = ("algo", "algo.name")
SETTINGS = ("hparams.", "algo.", "regularizer.", "task.", "mirror.", "transform.", "federation.")
RATES = ("client_lr", "server_lr", "hparams.client_lr", "hparams.server_lr")
MAX_LINES = 30
WIDE = 20.0  # ratio of the largest to the smallest positive value above which an axis is logarithmic


def check_columns(table: pd.DataFrame, x: str, y: str, by: str) -> None:
    """Raise UserError if the columns cannot be drawn."""
    numbers = [name for name in table if table[name].dtype.kind in "fiu"]
    for name, given, known in (("x", x, numbers), ("y", y, numbers), ("by", by, list(table))):
        require(given in known, name, given, f"one of {', '.join(map(str, known))}")
    values = table[by].nunique(dropna=False)
    require(values <= MAX_LINES, "by", by, f"a column of at most {MAX_LINES} values; it has {values}")
    columns = line_columns(table, x, by)
    lines = table[columns].drop_duplicates().shape[0]
    limit = f"a table of at most {MAX_LINES} lines; it has {lines}, which differ in {', '.join(columns)}: select rows"
    require(lines <= MAX_LINES, "results", f"{len(table)} rows", limit)


def compares_rates(x: str, by: str) -> bool:
    """Return True if a plot compares learning rates or options, so that all of them must be shown."""
    keys = {x, by} - set(ALGORITHM_COLUMNS)
    return any(key in RATES or key.startswith(("hparams.", "algo.")) for key in keys)


def line_columns(table: pd.DataFrame, x: str, by: str) -> list[str]:
    """Return the columns whose values define a line: `by`, and settings in which rows with the same x and by differ.

    Only repetitions, such as seeds, are aggregated in a line's band. Settings implied by the others are left out.
    """
    columns = [by]
    settings = [str(name) for name in table if str(name) in ("study", "algo") or str(name).startswith(SETTINGS)]
    for name in settings:
        if name not in (x, by) and table[name].nunique(dropna=False) > 1:
            values = table.groupby([*columns, x] if x not in columns else columns, dropna=False, sort=False)[name]
            if values.nunique(dropna=False).max() > 1:
                columns.append(name)
    return columns


def draw_lines(axis: Axes, table: pd.DataFrame, x: str, y: str, by: str) -> None:
    """Draw the median and the range of the rows that share `x`, `by` and all settings."""
    columns = line_columns(table, x, by)
    groups = {key: rows for key, rows in table.groupby(columns, sort=False, dropna=False) if rows[y].notna().any()}
    algorithms = by in ALGORITHM_COLUMNS
    order: Any = algorithm_order if algorithms else _in_order
    for number, key in enumerate(sorted(groups, key=lambda key: (order(key[0]), *map(_in_order, key[1:])))):
        style = _style(columns, key, number)
        spread = groups[key].groupby(x)[y].agg(["median", "min", "max"])
        at, (middle, low, high) = spread.index.to_numpy(dtype=float), map(drawable, spread.to_numpy(dtype=float).T)
        every = max(1, len(at) // 6)
        axis.plot(at, middle, label=for_figure(style.label), markevery=every, **line_options(style))
        axis.fill_between(at, low, high, color=style.color, alpha=0.2, linewidth=0)
    _scale(axis, "x", printable(x), table[x], log=False)
    _scale(axis, "y", metric_style(y).label, table[y], metric_style(y).log)
    axis.grid(alpha=0.25, linewidth=0.5)
    if groups:
        axis.legend(frameon=False, title=None if algorithms else for_figure(printable(by)))


def _scale(axis: Axes, side: str, label: str, column: pd.Series, log: bool) -> None:
    """Label an axis; make it logarithmic if `log` is set or the values span a wide range, and all are positive."""
    from matplotlib.ticker import MaxNLocator

    values = drawable(column.to_numpy(dtype=float))
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and (log or values.max() > WIDE * values.min()):
        log_ticks(axis, side)
        label += ", log scale"
    elif side == "x":
        axis.xaxis.set_major_locator(MaxNLocator(integer=bool((values == np.floor(values)).all())))
    axis.set(**{f"{side}label": for_figure(label)})


def _in_order(value: Any) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then texts."""
    number = isinstance(value, int | float) and value == value
    return not number, float(value) if number else 0.0, str(value)


def _style(columns: list[str], key: tuple[Any, ...], number: int) -> Style:
    """Return the algorithm's style if it alone defines the line, else a style by the line's number."""
    from fco_cli.algorithms.base import Style

    algorithms = columns[0] in ALGORITHM_COLUMNS
    if algorithms and len(columns) == 1:
        return algorithm_style(key[0])
    settings = (f"{name.split('.')[-1]} {_label(value)}" for name, value in zip(columns[1:], key[1:], strict=True))
    label = ", ".join([algorithm_style(key[0]).label if algorithms else _label(key[0]), *settings])
    return Style(label, PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)])


def _label(value: Any) -> str:
    if value is None or value != value:
        return "none"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else printable(str(value))
