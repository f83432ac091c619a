"""Figures of a Cox model: Kaplan-Meier curves with numbers at risk, and calibration at a horizon."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.inference.survival_curves import ALL_CLIENTS
from fco_cli.reporting.style import DARK_GRAY, GRAY, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 8  # clients that are drawn, those with most rows
DASHES = ("-", "--", "-.", ":")
MARKERS = "s^DvP*Xh"  # of clients that are drawn


def as_png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def survival_figure(lines: Sequence[dict[str, Any]], unit: str = "time") -> Figure:
    """Return the Kaplan-Meier curves of the lines of survival.csv, with intervals and numbers at risk."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    curves = {name: list(own) for name, own in groupby(lines, key=lambda line: str(line["client"]))}
    by_size = sorted(curves, key=lambda name: -curves[name][0]["at_risk"])
    shown = [name for name in curves if name in by_size[:LARGEST]]
    figure = Figure(figsize=(7, 4 + 0.22 * len(shown)), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.4, 0.35 + 0.22 * len(shown)])
    end = max(line["time"] for name in shown for line in curves[name])
    for k, name in enumerate(shown):
        _draw_curve(upper, curves[name], name, PALETTE[k % len(PALETTE)], DASHES[k % len(DASHES)])
    upper.set(ylim=(0, 1.02), xlim=(0, end), ylabel="survival")
    upper.legend(fontsize=8, frameon=False, ncols=2 if len(shown) > 4 else 1)
    ticks = [tick for tick in MaxNLocator(6).tick_values(0, end) if 0 <= tick <= end]
    for k, name in enumerate(shown):
        for tick in ticks:
            count = max((line["at_risk"] for line in curves[name] if line["time"] >= tick), default=0)
            lower.text(tick, k, str(count), ha="center", va="center", fontsize=7, color=PALETTE[k % len(PALETTE)])
    lower.set(ylim=(len(shown) - 0.5, -0.5), xlabel=unit, xticks=ticks)
    lower.set_yticks(range(len(shown)), shown, fontsize=7)
    lower.set_title("number at risk", fontsize=8, loc="left", color=DARK_GRAY)
    lower.tick_params(axis="y", length=0, pad=14)
    for side in ("top", "right", "left"):
        lower.spines[side].set_visible(False)
    for side in ("top", "right"):
        upper.spines[side].set_visible(False)
    if len(curves) > len(shown):
        upper.set_title(f"the {len(shown)} of {len(curves)} clients with most rows", fontsize=8, color=DARK_GRAY)
    return figure


def _draw_curve(axis: Axes, lines: list[dict[str, Any]], name: str, color: str, dash: str) -> None:
    times = np.array([0.0, *(line["time"] for line in lines)])
    values = np.array([1.0, *(line["survival"] for line in lines)])
    low, high = (np.array([np.nan, *(line[key] for line in lines)], dtype=float) for key in ("low", "high"))
    axis.step(times, values, where="post", color=color, ls=dash, lw=1.4, label=name)
    axis.fill_between(times, low, high, step="post", color=color, alpha=0.08, lw=0)
    censored = np.array([0, *(line["censored"] for line in lines)]) > 0
    axis.plot(times[censored], values[censored], "|", color=color, ms=4, mew=0.7)


def calibration_figure(lines: Sequence[dict[str, Any]], horizon: float, level: float) -> Figure:
    """Return the observed against the predicted risk of calibration.csv, of all clients and of each."""
    from matplotlib.figure import Figure

    groups = {name: list(own) for name, own in groupby(lines, key=lambda line: str(line["client"]))}
    clients = [name for name in groups if name != ALL_CLIENTS]
    by_size = sorted(clients, key=lambda name: -sum(line["rows"] for line in groups[name]))
    shown = [name for name in clients if name in by_size[:LARGEST]]
    figure = Figure(figsize=(4.6 + (1.4 if shown else 0), 4.4), layout="constrained")
    axis = figure.subplots()
    drawn = [line for name in (ALL_CLIENTS, *shown) for line in groups[name]]
    ends = [
        value for line in drawn for value in (line["predicted"], line["observed"], line["high"]) if value is not None
    ]
    limit = min(1.0, 1.05 * max(*ends, 0.01))
    axis.plot([0, limit], [0, limit], color=GRAY, lw=0.8)
    for k, name in enumerate(shown):
        color = PALETTE[k % len(PALETTE)]
        own = [(line["predicted"], line["observed"]) for line in groups[name]]
        axis.plot(*zip(*own, strict=True), MARKERS[k], color=color, ms=4.5, mfc="none", label=name)
    for line in groups[ALL_CLIENTS]:
        if line["low"] is not None:
            axis.plot([line["predicted"]] * 2, [line["low"], line["high"]], color=DARK_GRAY, lw=1.2)
        axis.plot(line["predicted"], line["observed"], "o", color=DARK_GRAY, ms=5, label=None)
    axis.set(xlim=(0, limit), ylim=(0, limit), aspect="equal")
    axis.set_xlabel(f"mean predicted risk until {horizon:g}")
    axis.set_ylabel(f"observed risk (Kaplan-Meier), {100 * level:g} % interval")
    if shown:
        axis.plot([], [], "o", color=DARK_GRAY, ms=5, label=ALL_CLIENTS)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    if len(clients) > len(shown):
        axis.set_title(f"the {len(shown)} of {len(clients)} clients with most rows", fontsize=8, color=DARK_GRAY)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure
