"""Shared style and helpers of figures, and the curves at the chosen learning rates.

Figures are matplotlib objects without pyplot's global state; `save` writes each as PNG and PDF. They are as wide as a
column of a two-column journal and use 8 point type.
"""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting.select import Cell, Choice, describe_spread
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, AlgorithmStyle, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 3.3  # inches
TITLE_CHARACTERS = 52  # per line
TITLE_LINES, LINE_HEIGHT = 2, 0.135  # lines that fit without growing the figure; inches per line
EDGE = "†"  # marks a choice on the edge of its grid
DPI = 300
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "hatch.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "figure.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "pdf.fonttype": 42,  # embed fonts and keep text searchable
}

MAX_DRAWN, MIN_DRAWN = 1e100, 1e-100  # limits beyond which the arithmetic of an axis overflows


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function to use the shared fonts and lines."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(height: float, rows: int, columns: int, **options: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure and its array of panels [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0.02, hspace=0.02)  # type: ignore[union-attr, call-arg]
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def add_title(figure: Figure, study: Study, *more: str) -> None:
    """Add the study's heading as title, and its note and `more` remarks on the lines below."""
    lines = textwrap.wrap(study.heading, TITLE_CHARACTERS)
    lines += textwrap.wrap("; ".join(filter(None, (study.note, *more))), TITLE_CHARACTERS)
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * max(0, len(lines) - TITLE_LINES))
    figure.suptitle(for_figure("\n".join(lines)), x=0.01, ha="left")


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path`.png and `path`.pdf; equal figures produce equal bytes."""
    written = []
    for suffix, options in ((".png", {"dpi": DPI}), (".pdf", {"metadata": {"CreationDate": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], **options)
        figure.set_layout_engine("none")  # reuse the layout for the second format
        written.append(path.with_name(path.name + suffix))
        write_atomically(written[-1], buffer.getvalue())
    return written


@styled
def draw_panels(study: Study, choices: dict[str, Choice], x: str = "rounds") -> Figure:
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


def end_ticks(axis: Axes) -> None:
    """Set ticks at the start, at the last round and, if that is an integer, halfway."""
    ends = [float(np.max(line.get_xdata())) for line in axis.get_lines() if len(line.get_xdata()) > 2]  # type: ignore[arg-type]
    if not ends or max(ends) <= 0:
        return
    ticks = [0, max(ends)] if max(ends) % 2 == 1 else [0, max(ends) / 2, max(ends)]
    axis.set_xticks(ticks, [f"{tick:.4g}" for tick in ticks])


def log_scale(axis: Axes, side: str = "y") -> None:
    """Make an axis logarithmic and label it so."""
    log_ticks(axis, side)
    if side == "y":
        axis.text(0.98, 0.97, "log scale", transform=axis.transAxes, ha="right", va="top", fontsize=6, color="#666666")


def log_ticks(axis: Axes, side: str) -> None:
    """Make an axis logarithmic, with plain numbers as tick labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set(**{f"{side}scale": "log"})
    scale = axis.yaxis if side == "y" else axis.xaxis
    low, high = scale.get_view_interval()
    subdivisions = (1, 2, 5) if high < 200 * low else (1,)
    scale.set_major_locator(LogLocator(subs=subdivisions))
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    scale.set_minor_formatter(NullFormatter())


def drawable(values: np.ndarray) -> np.ndarray:
    """Replace values too large to draw by NaN, which leaves a gap."""
    return np.where(np.abs(values) < MAX_DRAWN, values, np.nan)


def line_options(style: AlgorithmStyle) -> dict[str, Any]:
    """Return matplotlib's options for an algorithm's line."""
    dashes: Any = (0, style.dashes) if style.dashes else "-"
    return {"color": style.color, "linestyle": dashes, "linewidth": 1.1, "marker": style.marker, "markersize": 3}


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


def curves_table(study: Study, choices: dict[str, Choice]) -> DataFrame:
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
