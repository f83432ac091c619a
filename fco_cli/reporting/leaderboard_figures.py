"""The leaderboard's figures: the gap against what it costs, the map of all problems, the bias against the step size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fco_cli.reporting.figures import entitle, line_options, log_scale, new_figure, styled
from fco_cli.reporting.leaderboard import FLOOR, LEVELS, Standing, cost_of, gap_of, rounds_to, standings
from fco_cli.reporting.select import spread_said
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import algorithm_order, algorithm_style
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIDDLE = LEVELS[1]
AXES = {
    "round": "communication rounds",
    "megabytes": "sent, both ways (MB)",
    "gradients": "gradients of single rows",
    "prox_calls": "prox calls",
}


@styled
def draw_gaps(study: Study) -> Figure:
    """A panel per cost, a line per method at its best: the median over the seeds and, against rounds, their range."""
    found = sorted((one for one in standings(study) if one.runs), key=lambda one: algorithm_order(one.algo))
    figure, axes = new_figure(3.6 + 0.14 * -(-len(found) // 3), 2, 2, sharey=True)
    for axis, (name, label) in zip(axes.flat, AXES.items(), strict=True):
        for i, one in enumerate(found):
            _draw_gap(axis, one, name, i / len(found))
        log_scale(axis)
        if name != "round":
            axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.25, linewidth=0.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=6, handlelength=2.4)
    entitle(figure, study, "gap to the optimum, relative to the start's", spread_said(study))
    return figure


def _draw_gap(axis: Axes, one: Standing, name: str, offset: float) -> None:
    style = algorithm_style(one.algo)
    gaps = [gap for run in one.runs if (gap := gap_of(run)) is not None]
    if len(gaps) < len(one.runs) or (name != "round" and name != "megabytes" and name not in one.runs[0].curves):
        return
    costs = one.runs[0].curves["round"] if name == "round" else cost_of(one.runs[0], name)
    shown = costs > 0 if name != "round" else costs >= 0
    if not shown.any():
        return  # it has no such cost
    middle = np.median(gaps, axis=0)
    step = max(1, int(shown.sum()) // 5)
    options = line_options(style) | {"linewidth": 0.9, "markersize": 2.4, "markevery": (int(offset * step), step)}
    axis.plot(costs[shown], middle[shown], label=for_figure(style.label), **options)
    if name == "round" and len(gaps) > 1:
        axis.fill_between(
            costs, np.min(gaps, axis=0), np.max(gaps, axis=0), color=style.colour, alpha=0.15, linewidth=0
        )


@styled
def draw_map(studies: list[Study]) -> Figure:
    """Rounds to the middle level: a row per method, the best first, a column per problem."""
    found = {study.slug: {one.algo: one for one in standings(study)} for study in studies}
    algos = {algo for each in found.values() for algo in each}

    def mean_place(algo: str) -> tuple[float, float, str]:
        places = [list(each).index(algo) / len(each) for each in found.values() if algo in each]
        return (float(np.mean(places)), float(algorithm_order(algo)[0]), algo)

    rows = sorted(algos, key=mean_place)
    figure, axes = new_figure(1.3 + 0.17 * len(rows), 1, 1)
    figure.set_figwidth(min(1.4 + 0.62 * len(studies), 7.0))
    axis = axes[0, 0]
    shade = np.full((len(rows), len(studies)), np.nan)
    for j, study in enumerate(studies):
        for i, algo in enumerate(rows):
            if (one := found[study.slug].get(algo)) is None:
                continue
            rounds = float(np.median(rounds_to(one.best, MIDDLE)))
            text, colour = (f"{rounds:.0f}", "white") if np.isfinite(rounds) else (_short(one.final), "#666666")
            if np.isfinite(rounds):
                shade[i, j] = np.log10(max(rounds, 1))
            axis.text(j, i, text, ha="center", va="center", fontsize=5.5, color=colour)
    axis.imshow(shade, cmap="viridis_r", aspect="auto", vmin=0, vmax=max(3.6, float(np.nanmax(shade, initial=0))))
    axis.set_xticks(range(len(studies)), [for_figure(_column(study)) for study in studies], rotation=45, ha="right")
    axis.set_yticks(range(len(rows)), [for_figure(algorithm_style(algo).label) for algo in rows], fontsize=6.5)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    title = (
        f"Rounds to a gap of {MIDDLE:g} (median over the seeds);\nin grey the gap at the end, where it is never reached"
    )
    axis.set_title(title, loc="right", fontsize=7)
    return figure


def _short(gap: float) -> str:
    return "div." if np.isinf(gap) else "" if np.isnan(gap) else f"{gap:.0e}".replace("e-0", "e-")


def _column(study: Study) -> str:
    return study.title + (f", {study.variant}".replace("task.", "").replace("hparams.", "") if study.variant else "")


@styled
def draw_bias(study: Study) -> Figure:
    """Where each method ends with a larger and with a smaller client rate, at its chosen server step and options."""
    figure, axes = new_figure(3.2, 1, 1)
    axis = axes[0, 0]
    for one in sorted(standings(study), key=lambda one: algorithm_order(one.algo)):
        if len(one.bias) > 1:
            rates, gaps = np.array(one.bias).T
            style = algorithm_style(one.algo)
            axis.plot(rates, np.maximum(gaps, FLOOR), label=for_figure(style.label), **line_options(style))
    log_scale(axis)
    log_scale(axis, "x")
    axis.set_xlabel("client learning rate, in units of 1/L (log scale)")
    axis.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=6, handlelength=2.4)
    entitle(figure, study, "gap at the end against the client rate")
    return figure
