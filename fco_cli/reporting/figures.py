"""What all figures share, and the curves of the chosen learning rates.

Figures are plain objects, without pyplot's global state; `save` writes each as PNG and PDF. Sizes are those of a
page's text width, so that 7 to 8 point type is read as such.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting.select import Cell, Choice
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, algorithm_style, metric_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 7.0  # inches
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # text stays text
}

LARGEST_DRAWN, SMALLEST_DRAWN = 1e100, 1e-100  # beyond which an axis' arithmetic overflows


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw with the fonts and lines that all figures share."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(height: float, panels: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """A row of panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False, **options)[0])


@styled
def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path`.png and `path`.pdf; the same figure gives the same bytes."""
    written = []
    for suffix, options in ((".png", {"dpi": 200}), (".pdf", {"metadata": {"CreationDate": None}})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix[1:], **options)
        written.append(path.with_name(path.name + suffix))
        write_atomically(written[-1], buffer.getvalue())
    return written


@styled
def draw_panels(study: Study, choices: dict[str, Choice], x: str = "rounds") -> Figure:
    """One panel per metric, one curve per algorithm at its best learning rates; median and range over seeds."""
    figure, axes = new_figure(2.35, len(study.panels))
    for axis, metric in zip(axes, study.panels, strict=True):
        for algo, choice in choices.items():
            if choice.best is not None and choice.best.has(metric):
                _draw_cell(axis, choice.best, metric, x, offset=list(choices).index(algo) / len(choices))
        style = metric_style(metric)
        axis.set_title(style.label)
        axis.set_xlabel("rounds" if x == "rounds" else "megabytes sent")
        if (
            style.log
            and axis.get_lines()
            and all((np.asarray(line.get_ydata(), dtype=float) > SMALLEST_DRAWN).all() for line in axis.get_lines())
        ):
            _log_scale(axis)
        axis.grid(alpha=0.25, linewidth=0.5)
    _legend(figure, choices)
    figure.suptitle(for_figure(study.heading))
    return figure


def _log_scale(axis: Axes) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    subdivisions = (1, 2, 5) if high < 500 * low else (1,)
    axis.yaxis.set_major_locator(LogLocator(subs=subdivisions))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def drawable(values: np.ndarray) -> np.ndarray:
    """NaN, which leaves a gap, in the place of what no axis can show."""
    return np.where(np.abs(values) < LARGEST_DRAWN, values, np.nan)


def _draw_cell(axis: Axes, cell: Cell, metric: str, x: str, offset: float) -> None:
    style = algorithm_style(cell.algo)
    rounds, *values = cell.curve(metric)
    middle, low, high = map(drawable, values)
    if cell.algo == OPTIMUM:
        axis.axhline(middle[-1], color=style.colour, linestyle="--", linewidth=1, label=style.label)
        return
    if x == "bytes":
        if not cell.federated:  # nothing is sent: where it ends is all there is to show
            axis.axhline(middle[-1], color=style.colour, linestyle=":", linewidth=1, label=style.label)
            return
        run = cell.runs[0]
        rounds = run.megabytes[np.isin(run.curves["round"], rounds)]
    step = max(1, len(rounds) // 8)  # eight markers, not at the same rounds as another algorithm's
    axis.plot(
        rounds, middle, color=style.colour, label=style.label, linewidth=1.2,
        marker=style.marker, markersize=3.5, markevery=(int(offset * step), step),
    )  # fmt: skip
    if len(cell.runs) == 1:
        quartiles = [cell.runs[0].curves.get(f"{metric}_{q}") for q in ("q25", "q75")]
        if quartiles[0] is None or quartiles[1] is None:
            return
        low, high = drawable(quartiles[0]), drawable(quartiles[1])  # over the clients of the `local` baseline
    axis.fill_between(rounds, low, high, color=style.colour, alpha=0.2, linewidth=0)


def _legend(figure: Figure, choices: dict[str, Choice]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for algo, choice in choices.items():
        style = algorithm_style(algo)
        rates = "all diverged" if choice.best is None else choice.best.rates
        label = for_figure(f"{style.label} {rates}".strip())
        line: Any = "--" if algo == OPTIMUM else "-"
        handles.append(
            Line2D([], [], color=style.colour, marker=style.marker, markersize=4, linestyle=line, label=label)
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(handles)), frameon=False, fontsize=7)
