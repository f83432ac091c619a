"""Colors, and labels and line styles of algorithms and metrics, shared by figures, tables and pages."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fco_cli.algorithms import Algorithm
    from fco_cli.algorithms.base import Style

OPTIMUM = "optimum"  # the certified solution, the reference of all gaps

# Okabe and Ito (2008), extended: for lines that are not algorithms.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#661100")
# Tol (2021): for algorithms without a style; no algorithm of this package has one of these colors.
SPARE_COLORS = (
    "#44AA99", "#CC6677", "#997700", "#6699CC", "#AA3377", "#BBCC33", "#663333", "#EE8866", "#225522", "#DDCC77",
)  # fmt: skip
MARKERS = "o^sDvPX"
ACCENT = "#D55E00"  # frames and lines that must be noticed
DARK_GRAY, GRAY, LIGHT_GRAY = "#666666", "#999999", "#BBBBBB"  # small text; reference lines; lines in the background
FAINT_GRAY, PALE_GRAY = "#D8D8D8", "#EEEEEE"  # lines behind others; filled areas
LIGHTEST = 0.6  # share of white in the lightest shade of a color


_kinds: dict[str, type[Algorithm]] = {}  # registered algorithms by name
_spare_styles: dict[str, Style] = {}  # of algorithms without a style


def _kind(algo: str) -> type[Algorithm] | None:
    """Return the class of an algorithm; None if it is not registered, which a plug-in can change."""
    from fco_cli.algorithms import all_algorithms

    if algo not in _kinds and (kind := all_algorithms().get(algo)):
        _kinds[algo] = kind
    return _kinds.get(algo)


def algorithm_style(algo: str) -> Style:
    """Return the style of an algorithm's class.

    An algorithm that is not registered, or has no style of its own, is labeled by its name. Its color is one of
    SPARE_COLORS that no other such algorithm of this process has, as long as there are enough.
    """
    kind = _kind(algo)
    style = vars(kind).get("style") if kind else None
    if style is None:
        return _spare_styles[algo] if algo in _spare_styles else _add_spare_style(algo)
    return style if style.label else replace(style, label=algo)


def algorithm_shade(algo: str) -> tuple[float, ...]:
    """Return the color of an algorithm's style, lighter for others of the same color: the same in every figure.

    It separates the lines of a family, whose colors are often equal; markers and dashes do so in grayscale.
    """
    from matplotlib.colors import to_rgb

    from fco_cli.algorithms import all_algorithms

    color = algorithm_style(algo).color
    same = sorted(
        (other for other in {*all_algorithms(), algo} if algorithm_style(other).color == color), key=algorithm_order
    )
    white = LIGHTEST * same.index(algo) / max(1, len(same) - 1)
    return tuple(1 - (1 - part) * (1 - white) for part in to_rgb(color))


def _add_spare_style(algo: str) -> Style:
    from fco_cli.algorithms.base import Style

    start, taken = zlib.crc32(algo.encode()), [style.color for style in _spare_styles.values()]
    colors = [SPARE_COLORS[(start + i) % len(SPARE_COLORS)] for i in range(len(SPARE_COLORS))]
    color = min(colors, key=taken.count)  # the first of the least used ones
    marker = MARKERS[(start + taken.count(color)) % len(MARKERS)]
    _spare_styles[algo] = Style(algo, color, marker, (4, 1, 1, 1, 1, 1))
    return _spare_styles[algo]


def algorithm_order(algo: str) -> tuple[bool, bool, str, str]:
    """Return a sort key: federated algorithms first, by family ("others" last) and label."""
    kind, style = _kind(algo), algorithm_style(algo)
    return kind is not None and not kind.federated, style.family == "others", style.family, style.label


@dataclass(frozen=True)
class MetricStyle:
    """Label and scale of a metric."""

    label: str
    log: bool = False


METRICS = {
    "objective": MetricStyle("training loss + ψ", log=True),
    "train_loss": MetricStyle("training loss", log=True),
    "validation_loss": MetricStyle("validation loss", log=True),
    "validation_objective": MetricStyle("validation loss + ψ", log=True),
    "kkt_residual": MetricStyle("KKT residual", log=True),
    "recovery_error": MetricStyle("recovery error", log=True),
    "train_accuracy": MetricStyle("training accuracy"),
    "validation_accuracy": MetricStyle("validation accuracy"),
    "validation_auc": MetricStyle("validation AUC"),
    "validation_r2": MetricStyle("validation R²"),
    "f1": MetricStyle("F1"),
    "density": MetricStyle("density"),
    "rank": MetricStyle("rank"),
}


def metric_style(metric: str) -> MetricStyle:
    """Return the style of a metric; unknown metrics are labeled by their names."""
    return METRICS.get(metric, MetricStyle(metric.replace("_", " ")))
