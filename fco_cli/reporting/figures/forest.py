"""Forest plot: the clients' own estimates, their pooled values and the federated estimate."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special

from fco_cli.data.format import format_list
from fco_cli.errors import require
from fco_cli.reporting.coefficients import RATIOS
from fco_cli.reporting.figures.drawing import ratio_ticks
from fco_cli.reporting.style import DARK_GRAY, GRAY, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS, LARGEST = 6, 30  # panels by default, and clients of a panel
WIDEST = 3.0  # range of the axis, relative to that of the pooled estimates and the middle of the clients


class Row(NamedTuple):
    """One line of a forest plot."""

    label: str
    value: float
    error: float
    kind: str  # client, pooled or federated


def forest_png(result: dict[str, Any], clients: Sequence[dict[str, Any]]) -> bytes:
    """Return the forest plot of the coefficients with the largest statistics as a PNG file."""
    figure = forest_figure(result, clients)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def forest_figure(
    result: dict[str, Any], clients: Sequence[dict[str, Any]], coefficients: Sequence[str] | None = None
) -> Figure:
    """Return a figure with a panel per coefficient; `clients` are the lines of clients.csv."""
    from matplotlib.figure import Figure

    known = [line["coefficient"] for line in result["meta"]]
    names = list(coefficients or largest_statistics(result, PANELS))
    for name in names:
        require(name in known, "coefficients", name, f"some of {format_list(known)}")
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    shown = min(LARGEST, len({line["client"] for line in clients}))
    figure = Figure(figsize=(4.6 * columns, lines * (1.5 + 0.24 * (shown + 3))), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    reach = float(special.ndtri((1 + result["level"]) / 2))
    for axis, name in zip(axes, names, strict=False):
        _draw(axis, name, _rows(result, clients, name), reach, RATIOS.get(result["loss"]))
        pooled = next(line for line in result["meta"] if line["coefficient"] == name)
        heterogeneity = f"I² = {100 * pooled['i2']:.0f} %, τ² = {pooled['reml_tau2']:.2g}, p(Q) = {pooled['q_p']:.2g}"
        axis.set_title(f"{name}\n{heterogeneity}", fontsize=9)
    if without := result["clients_without_fit"]:
        count = f"{len(without)} of {result['clients']} clients"
        figure.supxlabel(f"{count} have no fit of their own: {format_list(without)}", fontsize=8)
    return figure


def _rows(result: dict[str, Any], clients: Sequence[dict[str, Any]], name: str) -> list[Row]:
    """Return the rows of a panel from top to bottom: the clients with most rows, pooled values, the federated fit."""
    own = sorted((line for line in clients if line["coefficient"] == name), key=lambda line: -line["rows"])
    rows = [Row(f"{line['client']} ({line['rows']} rows)", line["estimate"], line["error"], "client") for line in own]
    left_out = len(rows) - LARGEST
    rows = rows[:LARGEST]
    if left_out > 0:
        rows.append(Row(f"and {left_out} smaller clients", np.nan, np.nan, "client"))
    pooled = next(line for line in result["meta"] if line["coefficient"] == name)
    rows += [Row("fixed effect", pooled["fixed"], pooled["fixed_error"], "pooled")]
    rows += [Row("random effects (REML)", pooled["reml"], pooled["reml_error"], "pooled")]
    line = next(line for line in result["coefficients"] if line["coefficient"] == name)
    return [*rows, Row(f"federated fit ({result['rows']} rows)", line["estimate"], line["error"], "federated")]


def _draw(axis: Axes, name: str, rows: list[Row], reach: float, ratio: str | None) -> None:
    """Draw the rows; values beyond the axis are marked by arrows."""
    colors = {"client": DARK_GRAY, "pooled": PALETTE[0], "federated": PALETTE[1]}
    low, high = _limits(rows, reach)
    for k, row in enumerate(rows):
        if np.isnan(row.value):
            continue
        left, right, color = row.value - reach * row.error, row.value + reach * row.error, colors[row.kind]
        axis.plot([max(left, low), min(right, high)], [k, k], color=color, lw=1.2, solid_capstyle="butt")
        if low <= row.value <= high:
            axis.plot([row.value], [k], "s" if row.kind == "client" else "D", color=color, ms=5)
        for is_cut, end, marker in ((left < low, low, "<"), (right > high, high, ">")):
            if is_cut:
                axis.plot([end], [k], marker, color=color, ms=5, clip_on=False)
    axis.axvline(0, color=GRAY, lw=0.8, zorder=0)
    axis.axhline(len(rows) - 3.5, color=GRAY, lw=0.8, ls=":")
    axis.set_xlim(low, high)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_xlabel(ratio or "coefficient", fontsize=8)
    if ratio is not None:
        ratio_ticks(axis, low, high)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def _limits(rows: list[Row], reach: float) -> tuple[float, float]:
    """Return the limits of the axis: all summaries, and the clients unless their intervals are very wide."""
    ends = np.array([(row.value - reach * row.error, row.value + reach * row.error) for row in rows])
    is_client = np.array([row.kind == "client" for row in rows])
    summaries, own = ends[~is_client], ends[is_client & ~np.isnan(ends[:, 0])]
    low, high = min(0.0, summaries[:, 0].min()), max(0.0, summaries[:, 1].max())
    middle, width = (low + high) / 2, high - low
    typical = float(np.quantile(np.abs(own - middle), 0.9)) if len(own) else 0.0
    half = min(max(width / 2, 1.05 * float(np.abs(own - middle).max(initial=0))), max(WIDEST * width, 1.05 * typical))
    return middle - 1.05 * half, middle + 1.05 * half


def largest_statistics(result: dict[str, Any], count: int) -> list[str]:
    """Return the names of the coefficients with the largest statistics; of intercepts only if there are no others."""
    lines = [line for line in result["coefficients"] if not line["coefficient"].endswith("(Intercept)")]
    lines = lines or result["coefficients"]
    order = np.argsort([-abs(line["statistic"] or 0) for line in lines], kind="stable")
    return [lines[k]["coefficient"] for k in order[:count]]
