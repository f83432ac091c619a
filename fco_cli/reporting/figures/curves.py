"""Curves of every metric at the chosen learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting.figures.drawing import (
    MIN_DRAWN,
    add_title,
    drawable,
    end_ticks,
    line_options,
    log_scale,
    new_figure,
    styled,
)
from fco_cli.reporting.records.select import EDGE, Cell, Choice, describe_spread
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.style import OPTIMUM, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


@styled
def draw_panels(study: RecordedStudy, choices: dict[str, Choice], x: str = "rounds") -> Figure:
    """Draw a panel per metric and a curve per algorithm at its best learning rates: median and range over seeds."""
    count = len(study.panels)
    rows, columns = ((count + 1) // 2, 2) if count > 1 else (1, 1)
    legend_height = 0.35 + 0.14 * ((len(choices) + 1) // 2)
    figure, axes = new_figure(1.25 * rows + legend_height + 0.3, rows, columns, sharex=True)
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
        axis.set_xlabel("communication rounds" if x == "rounds" else "sent, both ways (MB)")
    _legend(figure, choices)
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
    if cell.algo == OPTIMUM or (x == "bytes" and not cell.federated):  # only its final value can be shown
        level = line_options(style) | {"linewidth": 0.9, "marker": ""}
        axis.axhline(median[-1], label=label, **level)
        return
    if x == "bytes":
        run = cell.runs[0]
        rounds = run.megabytes[np.isin(run.curves["round"], rounds)]
    step = max(1, len(rounds) // 6)  # six markers, shifted between algorithms
    axis.plot(rounds, median, label=label, markevery=(int(offset * step), step), **line_options(style))
    if len(cell.runs) == 1:
        quartiles = [cell.runs[0].curves.get(f"{metric}_{q}") for q in ("q25", "q75")]
        if quartiles[0] is None or quartiles[1] is None:
            return
        low, high = drawable(quartiles[0]), drawable(quartiles[1])  # over the clients of the `local` baseline
    axis.fill_between(rounds, low, high, color=style.color, alpha=0.2, linewidth=0)


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
