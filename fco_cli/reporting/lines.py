"""A plot of any column of a table of runs against another, a line for every value of a third."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.errors import require
from fco_cli.reporting.figures import drawable, line_options, log_ticks
from fco_cli.reporting.style import COLOURS, AlgorithmStyle, algorithm_order, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ALGORITHM_COLUMNS = ("algo", "algo.name")
MARKERS = "o^sDvPX"  # 7, colours 8: 56 looks before one comes again
MOST_LINES = 30
WIDE = 20.0  # a positive quantity whose largest value is so many times the smallest is shown by its logarithm


def check_columns(table: pd.DataFrame, x: str, y: str, by: str) -> None:
    """Refuse what cannot be drawn, before there is a figure."""
    numbers = [name for name in table if table[name].dtype.kind in "fiu"]
    for name, given, known in (("x", x, numbers), ("y", y, numbers), ("by", by, list(table))):
        require(given in known, name, given, f"one of {', '.join(map(str, known))}")
    values = table[by].nunique(dropna=False)
    require(values <= MOST_LINES, "by", by, f"a column of at most {MOST_LINES} values; it has {values}")


def draw_lines(axis: Axes, table: pd.DataFrame, x: str, y: str, by: str) -> None:
    """The median of the rows that share `x` and `by`, in a band of their range."""
    groups = {value: rows for value, rows in table.groupby(by, sort=False, dropna=False) if rows[y].notna().any()}
    algorithms = by in ALGORITHM_COLUMNS
    order: Any = algorithm_order if algorithms else _in_order
    for number, value in enumerate(sorted(groups, key=order)):
        style = _style(value, None if algorithms else number)
        spread = groups[value].groupby(x)[y].agg(["median", "min", "max"])
        at, (middle, low, high) = spread.index.to_numpy(dtype=float), map(drawable, spread.to_numpy(dtype=float).T)
        every = max(1, len(at) // 6)
        axis.plot(at, middle, label=for_figure(style.label), markevery=every, **line_options(style))
        axis.fill_between(at, low, high, color=style.colour, alpha=0.2, linewidth=0)
    _scale(axis, "x", printable(x), table[x], log=False)
    _scale(axis, "y", metric_style(y).label, table[y], metric_style(y).log)
    axis.grid(alpha=0.25, linewidth=0.5)
    if groups:
        axis.legend(frameon=False, title=None if algorithms else for_figure(printable(by)))


def _scale(axis: Axes, side: str, label: str, column: pd.Series, log: bool) -> None:
    """Name an axis; a logarithmic one where a metric asks for it or the values are wide apart, and can be."""
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
    """Numbers by size, then words."""
    number = isinstance(value, int | float) and value == value
    return not number, float(value) if number else 0.0, str(value)


def _style(value: Any, number: int | None) -> AlgorithmStyle:
    """An algorithm looks as in every figure; other values differ in colour and marker."""
    if number is None:
        return algorithm_style(value)
    if value is None or value != value:
        label = "none"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        label = f"{value:g}"
    else:
        label = printable(str(value))
    return AlgorithmStyle(label, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)])
