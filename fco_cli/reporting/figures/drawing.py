"""Shared style and helpers of figures.

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
from fco_cli.reporting.records.studies import RecordedStudy
from fco_cli.reporting.style import DARK_GRAY
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fco_cli.algorithms.base import Style

P = ParamSpec("P")
T = TypeVar("T")

WIDTH = 3.3  # inches
TITLE_CHARACTERS = 52  # per line
TITLE_LINES, LINE_HEIGHT = 2, 0.135  # lines that fit without growing the figure; inches per line
MAX_TITLE_LINES, SMALL_TITLE = 3, 6.0  # lines of normal type; points of smaller type
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

SMALL_STEPS = [step * 10.0**-digits for digits in (5, 4, 3, 2) for step in (1, 2, 5)]
RATIOS_ABOVE = [*(1 + step for step in SMALL_STEPS), 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, *np.logspace(3, 300, 298)]
RATIOS_BELOW = [*(1 - step for step in SMALL_STEPS), 0.9, 0.8, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01]
RATIOS_BELOW += list(np.logspace(-3, -300, 298))
MAX_RATIO_TICKS = 7  # on the axis at most
MAX_DRAWN, MIN_DRAWN = 1e100, 1e-100  # limits beyond which the arithmetic of an axis overflows


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Decorate a drawing function to use the shared fonts and lines."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapped


def new_figure(
    height: float, rows: int, columns: int, *, width: float = WIDTH, **options: Any
) -> tuple[Figure, np.ndarray]:
    """Return a figure and its array of panels [rows, columns]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0.02, hspace=0.02)  # type: ignore[union-attr, call-arg]
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def add_title(figure: Figure, study: RecordedStudy, *more: str) -> None:
    """Add the study's heading as title, and its note and `more` remarks on the lines below."""
    set_title(figure, [study.heading, "; ".join(filter(None, (study.note, *more)))])


def set_title(figure: Figure, parts: list[str]) -> None:
    """Add a title whose parts start on new lines, in smaller type if it would have more than MAX_TITLE_LINES lines."""
    size, characters = 8.0, TITLE_CHARACTERS
    lines = [line for part in parts for line in textwrap.wrap(part, characters)]
    if len(lines) > MAX_TITLE_LINES:
        size, characters = SMALL_TITLE, round(TITLE_CHARACTERS * size / SMALL_TITLE)
        lines = [line for part in parts for line in textwrap.wrap(part, characters)]
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * max(0, len(lines) - TITLE_LINES))
    figure.suptitle(for_figure("\n".join(lines)), x=0.01, ha="left", fontsize=size)


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
        axis.text(0.98, 0.97, "log scale", transform=axis.transAxes, ha="right", va="top", fontsize=6, color=DARK_GRAY)


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


def mark_cut(axis: Axes, end: float, places: np.ndarray, marker: str, **options: Any) -> None:
    """Mark lines that are cut off at an end of the axis by arrows at `places`."""
    if len(places):  # an empty line that is not clipped has an extent, at the corner of the figure
        axis.plot(np.full(len(places), end), places, marker, clip_on=False, **options)


def ratio_ticks(axis: Axes, low: float, high: float) -> None:
    """Label an axis of logarithms of ratios, from low <= 0 to high >= 0, by ratios; 1 is a tick."""
    ratios, apart = [1.0], (high - low) / MAX_RATIO_TICKS
    for end, side in ((high, RATIOS_ABOVE), (-low, [1 / ratio for ratio in RATIOS_BELOW])):
        last = 0.0
        for ratio in side:
            if last + apart <= np.log(ratio) <= end:
                last = float(np.log(ratio))
                ratios.append(ratio if side is RATIOS_ABOVE else 1 / ratio)
    ratios.sort()
    axis.set_xticks(np.log(ratios), [f"{ratio:.7g}" for ratio in ratios])


def drawable(values: np.ndarray) -> np.ndarray:
    """Replace values too large to draw by NaN, which leaves a gap."""
    return np.where(np.abs(values) < MAX_DRAWN, values, np.nan)


def line_options(style: Style) -> dict[str, Any]:
    """Return matplotlib's options for an algorithm's line."""
    dashes: Any = (0, style.dashes) if style.dashes else "-"
    return {"color": style.color, "linestyle": dashes, "linewidth": 1.1, "marker": style.marker, "markersize": 3}
