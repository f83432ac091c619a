"""Figures of the leaderboard, as wide as a journal page: overviews of all problems, and one figure per problem.

In the figure of a problem each row highlights one family of methods; the other families are drawn in gray behind it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting import (
    DARK_GRAY,
    FAINT_GRAY,
    GRAY,
    PALETTE,
    Figure,
    algorithm_shade,
    algorithm_style,
    for_figure,
    line_options,
    new_figure,
    styled,
)
from fco_cli.studies.leaderboard.method_results import FLOOR, LEVELS, MethodResult, has_stalled, rounds_to
from fco_cli.studies.leaderboard.numbers import (
    CLIENT_RATE,
    COSTS,
    Line,
    auto_numbers,
    by_heterogeneity,
    cost_curve,
    cost_numbers,
    gap_by_rate,
    gap_ratio,
    heterogeneity_numbers,
    map_numbers,
    problem_numbers,
    recorded_costs,
    round_ratio,
)
from fco_cli.studies.leaderboard.profiles import draw_profiles, profile_numbers
from fco_cli.studies.leaderboard.tables import FEW_ROUNDS, Problem, family_order, method_order, methods_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from pandas import DataFrame

PAGE = 7.0  # inches
CELL = 0.23  # inches that a number of the map needs; many methods make it wider than a page
MIDDLE = LEVELS[1]
FEW_ROUNDS_COSTS = ("round", "megabytes", "queries")
BEHIND: dict[str, Any] = {"color": FAINT_GRAY, "linewidth": 0.5, "zorder": 1}


def overviews(problems: list[Problem]) -> Iterator[Figure]:
    """Yield the overviews of all problems."""
    heading = f"Rounds to a gap of {MIDDLE:g}; in gray, if it is not reached: the final gap (↓: still decreasing)"
    draw = partial(draw_map, problems, heading, _rounds_to_middle, _format_gap)
    yield _overview("leaderboard", heading, draw, map_numbers(problems, _rounds_to_middle))
    heading = f"Performance profiles: share of problems with a gap of {MIDDLE:g} within a multiple of the least cost"
    yield _overview(
        "leaderboard_profiles", heading, partial(draw_profiles, problems, heading), profile_numbers(problems)
    )
    heading = f"Rounds until the density or rank stays equal to the optimum's, with a gap below {LEVELS[0]:g}"
    draw = partial(draw_map, problems, heading, _structure_rounds, _never)
    yield _overview("leaderboard_support", heading, draw, map_numbers(problems, _structure_rounds))
    heading = "client_lr=auto with default options, relative to the best of the grid; one dot per problem"
    yield _overview("leaderboard_auto", heading, partial(draw_auto, problems, heading), auto_numbers(problems))
    if few := [problem for problem in problems if problem.study.name.startswith(FEW_ROUNDS)]:
        heading = "Few-round methods: relative gap against rounds, megabytes and answered queries"
        numbers = cost_numbers(few, FEW_ROUNDS_COSTS)
        yield _overview("leaderboard_costs", heading, partial(draw_few_rounds, few, heading), numbers)
    if len(steps := by_heterogeneity(problems)) > 2:
        heading = "Final gap at the best of each grid against heterogeneity; open markers: still decreasing"
        numbers = heterogeneity_numbers(steps)
        yield _overview("leaderboard_heterogeneity", heading, partial(draw_heterogeneity, steps, heading), numbers)


def _overview(name: str, heading: str, draw: Callable[[], Drawing], numbers: DataFrame) -> Figure:
    return Figure(name, draw, f"{heading}.", numbers, alt=heading, wide=True)


def problem_figure(problem: Problem) -> Figure:
    """Return the figure of one problem."""
    heading = f"{problem.name}: the gap against what it costs, a row per family"
    name = f"leaderboard_{problem.study.slug}"
    draw = partial(draw_problem, problem)
    return Figure(name, draw, f"{heading}.", problem_numbers(problem), alt=heading, wide=True)


def _rounds_to_middle(one: MethodResult) -> np.ndarray:
    return rounds_to(one.best, MIDDLE)


def _structure_rounds(one: MethodResult) -> np.ndarray:
    return one.structure_rounds


def _never(one: MethodResult) -> str:
    return "never"


@styled
def draw_problem(problem: Problem) -> Drawing:
    """Draw a row per family: the gap against each cost, and the final gap against the client rate."""
    shown = [one for one in problem.methods if one.runs]
    families, costs = _families(shown), recorded_costs(shown)
    figure, axes = new_figure(
        0.75 + 1.05 * max(len(families), 1), max(len(families), 1), len(costs) + 1, sharey=True, sharex="col"
    )
    figure.set_figwidth(PAGE)
    lines = {one.algo: [*(cost_curve(one, cost) for cost in costs), gap_by_rate(one)] for one in shown}
    for row, (family, members) in zip(axes, families.items(), strict=False):
        for column, axis in enumerate(row):
            for one in shown:
                if one not in members:
                    axis.plot(*lines[one.algo][column], **BEHIND)
            for i, one in enumerate(members):
                style = _line_style(one, i, column, members, lines)
                axis.plot(*lines[one.algo][column], label=for_figure(one.label), **style)
            if column == 0 and problem.seeds:
                for one in members:
                    _band(axis, one, algorithm_shade(one.algo))
            axis.set(yscale="log", xscale="linear" if column == 0 else "log")
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.4)
        row[0].set_ylabel(for_figure("\n".join(textwrap.wrap(family, 16))), fontsize=7)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=6.5, handlelength=2.6)
    for axis, label in zip(axes[-1], (*costs.values(), CLIENT_RATE), strict=True):
        axis.set_xlabel(label, fontsize=7)
    more = "; ".join(filter(None, (problem.seeds, "last column: final gap by client rate", problem.study.note)))
    figure.suptitle(
        for_figure(f"{problem.name}: gap to the optimum, relative to the initial gap\n{more}"), x=0.01, ha="left"
    )
    return figure


@styled
def draw_few_rounds(problems: list[Problem], title: str) -> Drawing:
    """Draw a row per problem: the gap against rounds, megabytes and queries, a line or one marker per method."""
    figure, axes = new_figure(0.75 + 1.5 * len(problems), len(problems), len(FEW_ROUNDS_COSTS), sharey="row")
    figure.set_figwidth(PAGE)
    for row, problem in zip(axes, problems, strict=True):
        for axis, cost in zip(row, FEW_ROUNDS_COSTS, strict=True):
            for one in problem.methods:
                costs, gaps = cost_curve(one, cost)
                is_first_at_floor = np.cumsum(gaps <= FLOOR) <= 1  # the line ends there
                shown, style = (costs > 0) & is_first_at_floor, line_options(algorithm_style(one.algo))
                own = {
                    "color": algorithm_shade(one.algo),
                    "linewidth": 0.9,
                    "markersize": 3.5,
                    "markevery": 0.2 if shown.sum() > 1 else 1,
                }
                label = f"{one.label}{'' if one.runs else ' (diverged)'}"
                axis.plot(costs[shown], gaps[shown], label=for_figure(label), **style | own)
            axis.set(xscale="log", yscale="log")
            axis.set_xlabel(COSTS[cost], fontsize=7)
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.4)
        row[0].set_ylabel(for_figure("\n".join(textwrap.wrap(problem.name, 24))), fontsize=6)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=6.5, handlelength=2.6)
    figure.suptitle(for_figure(title), x=0.01, ha="left")
    return figure


def _families(results: list[MethodResult]) -> dict[str, list[MethodResult]]:
    """Group results by family, in the order of the families and, within a family, of the labels."""
    ordered = sorted(results, key=lambda one: method_order(one.algo))
    names = sorted({one.family for one in results}, key=family_order)
    return {name: [one for one in ordered if one.family == name] for name in names}


def _line_style(
    one: MethodResult, i: int, column: int, members: list[MethodResult], lines: dict[str, list[Line]]
) -> dict[str, Any]:
    """Return a line's style; markers are spaced along long lines and shifted between methods."""
    every = max(1, len(lines[one.algo][column][0]) // 4)
    first = int(every * i / len(members))
    own = {"color": algorithm_shade(one.algo), "linewidth": 0.9, "markersize": 2.8, "zorder": 2}
    return line_options(algorithm_style(one.algo)) | own | {"markevery": (first, every)}


def _band(axis: Axes, one: MethodResult, color: Any) -> None:
    rounds, gaps = one.curves
    if len(gaps):
        axis.fill_between(rounds, gaps.min(axis=0), gaps.max(axis=0), color=color, alpha=0.15, linewidth=0)


@styled
def draw_map(
    problems: list[Problem],
    title: str,
    number: Callable[[MethodResult], np.ndarray],
    otherwise: Callable[[MethodResult], str],
) -> Drawing:
    """Draw a map with a row per problem and a column per method.

    A cell shows the median of `number`, the smallest of a row in bold; `otherwise` formats results without one.
    """
    methods = methods_of(problems)
    figure, axes = new_figure(1.5 + 0.165 * len(problems), 1, 1)
    figure.set_figwidth(max(PAGE, 1.7 + CELL * len(methods)))
    axis = axes[0, 0]
    shade = np.full((len(problems), len(methods)), np.nan)
    for i, problem in enumerate(problems):
        medians = {one.algo: float(np.median(number(one))) for one in problem.methods}
        for j, algo in enumerate(methods):
            text, look = "·", {"fontsize": 6, "color": GRAY}  # the method does not support the problem
            if (one := problem.of(algo)) and np.isfinite(median := medians[algo]):
                shade[i, j] = np.log10(max(median, 1))
                text, look = f"{median:.0f}", {"fontsize": 5.2, "color": "white" if median > DARK_FROM else "black"}
                look["weight"] = "bold" if median == min(medians.values()) else "normal"
            elif one:
                text, look = otherwise(one), {"fontsize": 4.4, "color": DARK_GRAY}
            axis.text(j, i, text, ha="center", va="center", **look)
    image = axis.imshow(shade, cmap="viridis_r", aspect="auto", vmin=0, vmax=np.log10(MOST_ROUNDS))
    ticks = (1, 10, 100, MOST_ROUNDS)
    bar = figure.colorbar(image, ax=axis, fraction=0.03, pad=0.01, aspect=30)
    bar.set_ticks(list(np.log10(ticks)), labels=[f"{one:g}" for one in ticks], fontsize=6)
    bar.set_label("rounds", fontsize=6)
    bar.outline.set_visible(False)
    names = [for_figure(textwrap.fill(problem.name, 42)) for problem in problems]
    axis.set_yticks(range(len(problems)), names, fontsize=5.2, linespacing=1)
    labels = [for_figure(algorithm_style(algo).label) for algo in methods]
    axis.set_xticks(range(len(methods)), labels, fontsize=6, rotation=60, ha="left", rotation_mode="anchor")
    axis.xaxis.tick_top()
    for j in range(1, len(methods)):
        if algorithm_style(methods[j]).family != algorithm_style(methods[j - 1]).family:
            axis.axvline(j - 0.5, color="black", linewidth=0.6)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, pad=2)
    key = "number and color: rounds; bold: the fewest of the row; ·: the method does not support the problem"
    figure.suptitle(for_figure(f"{title}\n{key}"), x=0.01, ha="left")
    return figure


DARK_FROM = 25  # rounds above which the map's colors need white text
MOST_ROUNDS = 500  # end of the map's colors


def _format_gap(one: MethodResult) -> str:
    if np.isinf(one.final):
        return "div."
    return f"{one.final:.0e}".replace("e-0", "e-").replace("e+00", "") + "↓" * (not has_stalled(one.best))


@styled
def draw_auto(problems: list[Problem], title: str) -> Drawing:
    """Draw two ratios of untuned to best: the final gap and the rounds to the largest level."""
    methods = methods_of(problems)
    figure, axes = new_figure(0.9 + 0.145 * len(methods), 1, 2, sharey=True)
    figure.set_figwidth(PAGE)
    for axis, label, ratio in zip(
        axes[0],
        ("final gap, auto / best", f"rounds to {LEVELS[0]:g}, auto / best"),
        (gap_ratio, round_ratio),
        strict=True,
    ):
        for i, algo in enumerate(methods):
            values = [ratio(one) for problem in problems if (one := problem.of(algo)) and one.untuned]
            finite = [value for value in values if np.isfinite(value)]
            axis.scatter(finite, [i] * len(finite), s=5, color=PALETTE[5], linewidths=0)
            if finite:
                axis.scatter(np.median(finite), i, s=22, marker="|", color="black", linewidths=1.2)
            if never := sum(np.isinf(value) for value in values):
                place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (2, 0), "textcoords": "offset points"}
                axis.annotate(f"{never} never", (1.0, i), fontsize=5.5, va="center", color=DARK_GRAY, **place)
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.axvline(1, color="black", linewidth=0.6)
        axis.grid(alpha=0.25, linewidth=0.4)
    axes[0, 0].set_yticks(
        range(len(methods)), [for_figure(algorithm_style(algo).label) for algo in methods], fontsize=6
    )
    axes[0, 0].invert_yaxis()
    figure.suptitle(for_figure(f"{title}, bars are medians"), x=0.01, ha="left")
    return figure


@styled
def draw_heterogeneity(steps: dict[float, Problem], title: str) -> Drawing:
    """Draw the final gap against heterogeneity, with a panel per family."""
    results = {one.algo: one for problem in steps.values() for one in problem.methods}
    families = _families(list(results.values()))
    figure, axes = new_figure(2.3 + 0.1 * max(map(len, families.values())), 1, len(families), sharey=True)
    figure.set_figwidth(PAGE)
    for axis, (family, members) in zip(axes[0], families.items(), strict=True):
        for member in members:
            ends = {step: one for step, problem in steps.items() if (one := problem.of(member.algo))}
            look = line_options(algorithm_style(member.algo)) | {
                "color": algorithm_shade(member.algo),
                "linewidth": 0.9,
            }
            axis.plot(list(ends), [one.final for one in ends.values()], label=for_figure(member.label), **look)
            falling = {step: one.final for step, one in ends.items() if one.final > FLOOR and not has_stalled(one.best)}
            axis.plot(list(falling), list(falling.values()), **look | {"linestyle": "", "markerfacecolor": "white"})
        axis.set_yscale("log")
        axis.set_title(for_figure("\n".join(textwrap.wrap(family, 18))), fontsize=7)
        axis.set_xlabel("heterogeneity", fontsize=7)
        axis.grid(alpha=0.25, linewidth=0.4)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False, fontsize=6, handlelength=2.4)
    figure.suptitle(for_figure(title), x=0.01, ha="left")
    return figure
