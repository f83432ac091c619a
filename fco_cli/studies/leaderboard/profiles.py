"""Performance profiles of the methods (Dolan and More, 2002): shares of problems on which a method is nearly the best.

The ratio of a method on a problem is its median cost to reach a level over the smallest such cost of all methods. The
profile rho(tau) is the share of problems with a ratio of at most tau. A method has an infinite ratio on a problem that
it does not support or on which it does not reach the level, and no profile for a cost that it never records. Problems
on which no method reaches the level, or one does at no cost, are left out.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting import FAINT_GRAY, algorithm_shade, algorithm_style, for_figure, line_options, new_figure, styled
from fco_cli.studies.leaderboard.method_results import LEVELS
from fco_cli.studies.leaderboard.numbers import COSTS
from fco_cli.studies.leaderboard.tables import Problem, family_order, methods_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

LEVEL = LEVELS[1]
PROFILED = ("round", "megabytes", "gradients", "simulated_seconds")
PAGE = 7.0  # inches
BEHIND: dict[str, Any] = {"color": FAINT_GRAY, "linewidth": 0.5, "zorder": 1, "drawstyle": "steps-post"}
MARGIN = 1.1  # factor by which curves extend beyond the largest ratio

Profile = tuple[np.ndarray, np.ndarray]


def cost_ratios(problems: list[Problem], cost: str) -> dict[str, np.ndarray]:
    """Return the ratios [problems] of every method."""
    methods = methods_of(problems)
    costs, unknown = np.full((len(methods), len(problems)), np.inf), set(methods)
    for j, problem in enumerate(problems):
        for one in problem.methods:
            if not np.isnan(value := one.cost_to(LEVEL, cost)):
                costs[methods.index(one.algo), j] = value
                unknown.discard(one.algo)
    least = costs.min(axis=0, initial=np.inf)
    counted = np.isfinite(least) & (least > 0)
    ratios = costs[:, counted] / least[counted]
    return {algo: own for algo, own in zip(methods, ratios, strict=True) if algo not in unknown}


def profile(ratios: np.ndarray) -> Profile:
    """Return the points at which the share of problems rises, beginning at ratio 1."""
    finite = np.sort(ratios[np.isfinite(ratios)])
    taus = np.unique(np.append(1.0, finite))
    return taus, np.searchsorted(finite, taus, side="right") / max(len(ratios), 1)


def profile_numbers(problems: list[Problem]) -> DataFrame:
    """Return the points of all profiles."""
    import pandas as pd

    rows = [
        {"cost": COSTS[cost], "method": algorithm_style(algo).label, "ratio": tau, "share of problems": share}
        for cost in _costs(problems)
        for algo, ratios in cost_ratios(problems, cost).items()
        for tau, share in zip(*profile(ratios), strict=True)
    ]
    return pd.DataFrame(rows, columns=["cost", "method", "ratio", "share of problems"])


def _costs(problems: list[Problem]) -> list[str]:
    """Return the costs that a method needed to reach the level on some problem."""
    methods = [one for problem in problems for one in problem.methods]
    return [cost for cost in PROFILED if any(np.isfinite(one.cost_to(LEVEL, cost)) for one in methods)]


@styled
def draw_profiles(problems: list[Problem], title: str) -> Drawing:
    """Draw a column per cost and a row per family, with the other families in gray behind it."""
    costs = _costs(problems) or [PROFILED[0]]
    methods = methods_of(problems)
    families = sorted({algorithm_style(algo).family for algo in methods}, key=family_order)
    figure, axes = new_figure(0.75 + 1.05 * len(families), len(families), len(costs), sharey=True, sharex="col")
    figure.set_figwidth(PAGE)
    for column, cost in enumerate(costs):
        ratios = cost_ratios(problems, cost)
        largest = max((float(one[np.isfinite(one)].max(initial=1)) for one in ratios.values()), default=1) * MARGIN
        lines = {algo: _extended(profile(one), largest) for algo, one in ratios.items()}
        for row, family in zip(axes, families, strict=True):
            axis = row[column]
            members = [algo for algo in methods if algorithm_style(algo).family == family]
            for algo in lines:
                if algo not in members:
                    axis.plot(*lines[algo], **BEHIND)
            for algo in members:
                if algo not in lines:
                    continue
                own = {"color": algorithm_shade(algo), "linewidth": 0.9, "markersize": 2.8, "zorder": 2}
                look = line_options(algorithm_style(algo)) | own | {"drawstyle": "steps-post", "markevery": 0.25}
                axis.plot(*lines[algo], label=for_figure(algorithm_style(algo).label), **look)
            axis.set(xscale="log", xlim=(1, largest), ylim=(-0.03, 1.03))
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.4)
        axes[-1][column].set_xlabel(f"{COSTS[cost]} / best", fontsize=7)
    for row, family in zip(axes, families, strict=True):
        row[0].set_ylabel(for_figure("\n".join(textwrap.wrap(family, 16))), fontsize=7)
        look = {"bbox_to_anchor": (1.02, 0.5), "frameon": False, "fontsize": 6.5, "handlelength": 2.6}
        row[-1].legend(*row[0].get_legend_handles_labels(), loc="center left", **look)
    figure.suptitle(for_figure(title), x=0.01, ha="left")
    return figure


def _extended(points: Profile, largest: float) -> Profile:
    """Return a profile with its last share continued to the edge of the figure."""
    taus, shares = points
    return np.append(taus, largest), np.append(shares, shares[-1])
