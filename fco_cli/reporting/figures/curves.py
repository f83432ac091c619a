"""Curves of every metric at the chosen learning rates, and line plots of any table of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.reporting.figures.drawing import (
    MIN_DRAWN,
    WIDTH,
    add_title,
    drawable,
    end_ticks,
    line_options,
    log_scale,
    log_ticks,
    new_figure,
    styled,
)
from fco_cli.reporting.records.select import EDGE, Cell, Choice, describe_spread
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.style import MARKERS, OPTIMUM, PALETTE, algorithm_order, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure, printable
from fco_cli.results import SIMULATED_SECONDS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from fco_cli.algorithms.base import Style

ALGORITHM_COLUMNS = ("algo", "algo.name")
SETTINGS = (
    "hparams.", "algo.", "regularizer.", "task.", "mirror.", "transform.", "federation.",
    "participation.", "time_model.", "aggregation.",
)  # fmt: skip
RATES = ("client_lr", "server_lr", "hparams.client_lr", "hparams.server_lr")
X_LABELS = {
    "rounds": "communication rounds",
    "bytes": "sent, both ways (MB)",
    "seconds": "simulated seconds",
}  # by the option --x of fco-report
MAX_LINES = 30
ROW_PANEL_WIDTH = 1.7  # inches; four panels span two columns of a paper
WIDE = 20.0  # ratio of the largest to the smallest positive value above which an axis is logarithmic


@styled
def draw_panels(study: RecordedStudy, choices: dict[str, Choice], x: str = "rounds", in_row: bool = False) -> Figure:
    """Draw a panel per metric and a curve per algorithm at its best learning rates: median and range over seeds.

    A study without simulated seconds is drawn over its rounds. Panels `in_row` have no title above them, as in a paper.
    """
    if x == "seconds" and not any(SIMULATED_SECONDS in run.curves for run in study.runs):
        x = "rounds"
    count = len(study.panels)
    rows, columns = (1, count) if in_row else ((count + 1) // 2, 2) if count > 1 else (1, 1)
    legend_height = 0.35 + 0.14 * ((len(choices) + 1) // 2)
    width = ROW_PANEL_WIDTH * count if in_row else WIDTH
    figure, axes = new_figure(1.25 * rows + legend_height + 0.3, rows, columns, width=width, sharex=True)
    panels = list(axes.flat)
    for spare in panels[count:]:
        spare.set_axis_off()
        panels[panels.index(spare) - columns].xaxis.set_tick_params(labelbottom=True)
    for axis, metric in zip(panels, study.panels, strict=False):
        for algo, choice in choices.items():
            if choice.best is not None and choice.best.has(metric):
                _draw_cell(axis, choice.best, metric, x, offset=list(choices).index(algo) / len(choices))
        style = metric_style(metric)
        log = style.log and _all_positive(axis)
        axis.set_title(for_figure(style.label))
        if log:
            log_scale(axis)
        axis.grid(alpha=0.25, linewidth=0.5)
    end_ticks(panels[0])
    for axis in [axis for i, axis in enumerate(panels[:count]) if i + columns >= count]:
        axis.set_xlabel(X_LABELS[x])
    _legend(figure, choices)
    if not in_row:
        add_title(figure, study, describe_spread(study))
    return figure


def _all_positive(axis: Axes) -> bool:
    values = [np.asarray(line.get_ydata(), dtype=float) for line in axis.get_lines()]
    return bool(values) and all((one > MIN_DRAWN).all() for one in values)


def _draw_cell(axis: Axes, cell: Cell, metric: str, x: str, offset: float) -> None:
    style = algorithm_style(cell.algo)
    rounds, *values = cell.curve(metric)
    median, low, high = map(drawable, values)
    label = for_figure(style.label)
    places = rounds if x == "rounds" else _places(cell, x, rounds)
    if cell.algo == OPTIMUM or places is None:  # only its final value can be shown
        level = line_options(style) | {"linewidth": 0.9, "marker": ""}
        axis.axhline(median[-1], label=label, **level)
        return
    step = max(1, len(rounds) // 6)  # six markers, shifted between algorithms
    axis.plot(places, median, label=label, markevery=(int(offset * step), step), **line_options(style))
    if len(cell.runs) == 1:
        quartiles = [cell.runs[0].curves.get(f"{metric}_{q}") for q in ("q25", "q75")]
        if quartiles[0] is None or quartiles[1] is None:
            return
        low, high = drawable(quartiles[0]), drawable(quartiles[1])  # over the clients of the `local` baseline
    axis.fill_between(places, low, high, color=style.color, alpha=0.2, linewidth=0)


def _places(cell: Cell, x: str, rounds: np.ndarray) -> np.ndarray | None:
    """Return the positions of rounds on an axis of bytes or seconds, the median over the seeds; None if it has none."""
    if not cell.federated or (x == "seconds" and not cell.has(SIMULATED_SECONDS)):
        return None
    columns = [run.megabytes if x == "bytes" else run.curves[SIMULATED_SECONDS] for run in cell.runs]
    shared = [np.isin(run.curves["round"], rounds) for run in cell.runs]
    return np.median([column[mask] for column, mask in zip(columns, shared, strict=True)], axis=0)


def _legend(figure: Figure, choices: dict[str, Choice]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for algo, choice in choices.items():
        rates = "all diverged" if choice.best is None else choice.best.rates + EDGE * bool(choice.on_edge)
        label = for_figure(f"{algorithm_style(algo).label} {rates}".strip())
        handles.append(Line2D([], [], label=label, **line_options(algorithm_style(algo))))
    title = "algorithm (client, server learning rate)"
    if any(choice.on_edge for choice in choices.values()):
        title += f"; {EDGE} on the edge of its grid"
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, frameon=False, title=title, title_fontsize=7,
        fontsize=6.5, handlelength=2.4, handletextpad=0.5, columnspacing=0.8, labelspacing=0.3, borderpad=0.1,
    )  # fmt: skip


def curves_table(study: RecordedStudy, choices: dict[str, Choice]) -> DataFrame:
    """Return the plotted numbers of the curves."""
    import pandas as pd

    parts = []
    for algo, choice in choices.items():
        for metric in study.panels if choice.best is not None else ():
            if choice.best is not None and choice.best.has(metric):
                curve = choice.best.curve(metric)
                rates = {"client_lr": choice.best.client_lr, "server_lr": choice.best.server_lr}
                parts.append(pd.DataFrame({"algorithm": algo, **rates, "metric": metric, **curve._asdict()}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def with_numbers(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the table with texts that are all numbers as numbers: `auto` makes texts of a whole column."""
    import pandas as pd

    found = {}
    for name in columns:
        if name in table and table[name].dtype.kind not in "fiub":
            numbers = pd.to_numeric(table[name], errors="coerce")
            if table[name].notna().any() and (numbers.isna() == table[name].isna()).all():
                found[name] = numbers.astype(float)
    return table.assign(**found)


def check_columns(table: pd.DataFrame, x: str, y: str, by: str) -> None:
    """Raise UserError if the columns cannot be drawn."""
    numbers = [name for name in table if table[name].dtype.kind in "fiu"]
    for name, given in (("x", x), ("y", y)):
        if given in table and given not in numbers:
            texts = [str(one) for one in table[given].unique() if isinstance(one, str)]
            such = f", such as {printable(texts[0])}" if texts else ""
            used = given.rpartition(".")[2]
            other = f" or use {used}, the values of the runs" if used != given and used in numbers else ""
            raise UserError(f"{name}: column {given} has values that are not numbers{such}; select rows{other}")
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
