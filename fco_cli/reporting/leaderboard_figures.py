"""The leaderboard's figures, as wide as a journal's page: all problems at a glance, and every problem by families.

Within a family colours, markers and dashes tell the methods apart; the other families stand behind it in gray.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.figures import line_options, new_figure, styled
from fco_cli.reporting.leaderboard import Problem, methods_of
from fco_cli.reporting.standings import FLOOR, LEVELS, Standing, cost_of, final_gap, is_at_rest, rounds_to
from fco_cli.reporting.studies import settings_of
from fco_cli.reporting.style import FAMILIES, OTHERS, algorithm_order, algorithm_style, family_of
from fco_cli.reporting.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = 7.0  # inches
MIDDLE = LEVELS[1]
COSTS = {
    "round": "rounds",
    "megabytes": "sent, both ways (MB)",
    "gradients": "gradients of rows",
    "prox_calls": "prox calls",
}
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito's, of a family's members
BEHIND: dict[str, Any] = {"color": "#D8D8D8", "linewidth": 0.5, "zorder": 1}
HETEROGENEITY = "task.heterogeneity"
Line = tuple[np.ndarray, np.ndarray]


def overviews(problems: list[Problem]) -> Iterator[tuple[str, str, Figure]]:
    """Name, heading and figure of what is drawn of all problems together."""
    said = f"Rounds to a gap of {MIDDLE:g}; in gray, where it is not reached, the gap at the end (↓: still falling)"
    yield "leaderboard", said, draw_map(problems, said, lambda one: rounds_to(one.best, MIDDLE), _gap_said)
    said = "Rounds from which on a method has the optimum's density or rank, for good"
    yield "leaderboard_support", said, draw_map(problems, said, lambda one: one.structure_from, lambda _: "never")
    said = "How far client_lr=auto with a method's defaults is from the best of its grid; a dot is a problem"
    yield "leaderboard_auto", said, draw_auto(problems, said)
    if len(steps := by_heterogeneity(problems)) > 2:
        said = "The gap at the end, at the best of each grid, as the clients grow apart; an open marker: still falling"
        yield "leaderboard_heterogeneity", said, draw_heterogeneity(steps, said)


@styled
def draw_problem(problem: Problem) -> Figure:
    """A row per family: the gap against what it costs, and where it ends by the client rate."""
    shown = [one for one in problem.methods if one.runs]
    families = _families(shown)
    figure, axes = new_figure(
        0.75 + 1.05 * max(len(families), 1), max(len(families), 1), len(COSTS) + 1, sharey=True, sharex="col"
    )
    figure.set_figwidth(PAGE)
    lines = {one.algo: [*(_against(one, cost) for cost in COSTS), _bias(one)] for one in shown}
    for row, (family, members) in zip(axes, families.items(), strict=False):
        for column, axis in enumerate(row):
            for one in shown:
                if one not in members:
                    axis.plot(*lines[one.algo][column], **BEHIND)
            for i, one in enumerate(members):
                axis.plot(
                    *lines[one.algo][column], label=for_figure(one.label), **_look(one, i, column, members, lines)
                )
            if column == 0 and problem.seeds:
                for i, one in enumerate(members):
                    _band(axis, one, PALETTE[i % len(PALETTE)])
            axis.set(yscale="log", xscale="linear" if column == 0 else "log")
            axis.minorticks_off()
            axis.grid(alpha=0.25, linewidth=0.4)
        row[0].set_ylabel(for_figure("\n".join(textwrap.wrap(family, 16))), fontsize=7)
        row[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=6.5, handlelength=2.6)
    for axis, label in zip(axes[-1], (*COSTS.values(), "client rate × L"), strict=True):
        axis.set_xlabel(label, fontsize=7)
    more = "; ".join(filter(None, (problem.seeds, "last column: at the end, by the client rate", problem.study.note)))
    figure.suptitle(
        for_figure(f"{problem.name}: gap to the optimum, relative to the start's\n{more}"), x=0.01, ha="left"
    )
    return figure


def _families(found: list[Standing]) -> dict[str, list[Standing]]:
    """In the order of the families, each in that of the algorithms."""
    ordered = sorted(found, key=lambda one: algorithm_order(one.algo))
    families = {family: [one for one in ordered if one.family == family] for family in (*FAMILIES, OTHERS)}
    return {family: members for family, members in families.items() if members}


def _against(one: Standing, cost: str) -> Line:
    """The median gap over the seeds; nothing where a method has no such cost."""
    rounds, gaps = one.curves
    costs = cost_of(one.runs[0], cost)
    if costs is None or not len(gaps):
        return np.array([]), np.array([])
    costs = costs[np.isin(one.runs[0].curves["round"], rounds)]
    shown = np.ones(len(costs), dtype=bool) if cost == "round" else costs > 0
    return costs[shown], np.median(gaps, axis=0)[shown]


def _bias(one: Standing) -> Line:
    return np.array([rate for rate, _ in one.by_rate]), np.array([final_gap(cell) for _, cell in one.by_rate])


def _look(one: Standing, i: int, column: int, members: list[Standing], lines: dict[str, list[Line]]) -> dict[str, Any]:
    """Some markers of a long line, not where another method has its own; every point of a short one."""
    every = max(1, len(lines[one.algo][column][0]) // 4)
    first = int(every * i / len(members))
    own = {"color": PALETTE[i % len(PALETTE)], "linewidth": 0.9, "markersize": 2.8, "zorder": 2}
    return line_options(algorithm_style(one.algo)) | own | {"markevery": (first, every)}


def _band(axis: Axes, one: Standing, color: str) -> None:
    rounds, gaps = one.curves
    if len(gaps):
        axis.fill_between(rounds, gaps.min(axis=0), gaps.max(axis=0), color=color, alpha=0.15, linewidth=0)


@styled
def draw_map(
    problems: list[Problem], title: str, number: Callable[[Standing], np.ndarray], otherwise: Callable[[Standing], str]
) -> Figure:
    """A row per problem, a column per method: the median number, the smallest bold; or what is said where none is."""
    methods = methods_of(problems)
    figure, axes = new_figure(1.35 + 0.165 * len(problems), 1, 1)
    figure.set_figwidth(PAGE)
    axis = axes[0, 0]
    shade = np.full((len(problems), len(methods)), np.nan)
    for i, problem in enumerate(problems):
        medians = {one.algo: float(np.median(number(one))) for one in problem.methods}
        for j, algo in enumerate(methods):
            text, look = "·", {"fontsize": 6, "color": "#AAAAAA"}  # it cannot do this one
            if (one := problem.of(algo)) and np.isfinite(median := medians[algo]):
                shade[i, j] = np.log10(max(median, 1))
                text, look = f"{median:.0f}", {"fontsize": 5.2, "color": "white" if median > DARK_FROM else "black"}
                look["weight"] = "bold" if median == min(medians.values()) else "normal"
            elif one:
                text, look = otherwise(one), {"fontsize": 4.4, "color": "#757575"}
            axis.text(j, i, text, ha="center", va="center", **look)
    axis.imshow(shade, cmap="viridis_r", aspect="auto", vmin=0, vmax=np.log10(500))
    names = [for_figure(textwrap.fill(problem.name, 42)) for problem in problems]
    axis.set_yticks(range(len(problems)), names, fontsize=5.2, linespacing=1)
    labels = [for_figure(algorithm_style(algo).label) for algo in methods]
    axis.set_xticks(range(len(methods)), labels, fontsize=6, rotation=60, ha="left", rotation_mode="anchor")
    axis.xaxis.tick_top()
    for j in range(1, len(methods)):
        if family_of(methods[j]) != family_of(methods[j - 1]):
            axis.axvline(j - 0.5, color="black", linewidth=0.6)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, pad=2)
    figure.suptitle(for_figure(title), x=0.01, ha="left")
    return figure


DARK_FROM = 25  # rounds: where the map's colors ask for white numbers


def _gap_said(one: Standing) -> str:
    if np.isinf(one.final):
        return "div."
    return f"{one.final:.0e}".replace("e-0", "e-").replace("e+00", "") + "↓" * (not is_at_rest(one.best))


@styled
def draw_auto(problems: list[Problem], title: str) -> Figure:
    """Two ratios, untuned to best: the gap at the end, and the rounds to the coarsest level."""
    methods = methods_of(problems)
    figure, axes = new_figure(0.9 + 0.145 * len(methods), 1, 2, sharey=True)
    figure.set_figwidth(PAGE)
    for axis, label, ratio in zip(
        axes[0],
        ("gap at the end, auto / best", f"rounds to {LEVELS[0]:g}, auto / best"),
        (_gap_ratio, _round_ratio),
        strict=True,
    ):
        for i, algo in enumerate(methods):
            values = [ratio(one) for problem in problems if (one := problem.of(algo)) and one.untuned]
            finite = [value for value in values if np.isfinite(value)]
            axis.scatter(finite, [i] * len(finite), s=5, color="#56B4E9", linewidths=0)
            if finite:
                axis.scatter(np.median(finite), i, s=22, marker="|", color="black", linewidths=1.2)
            if never := sum(np.isinf(value) for value in values):
                place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (2, 0), "textcoords": "offset points"}
                axis.annotate(f"{never} never", (1.0, i), fontsize=5.5, va="center", color="#757575", **place)
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.axvline(1, color="black", linewidth=0.6)
        axis.grid(alpha=0.25, linewidth=0.4)
    axes[0, 0].set_yticks(
        range(len(methods)), [for_figure(algorithm_style(algo).label) for algo in methods], fontsize=6
    )
    axes[0, 0].invert_yaxis()
    figure.suptitle(for_figure(f"{title}, a bar their median"), x=0.01, ha="left")
    return figure


def _gap_ratio(one: Standing) -> float:
    """NaN where the best diverges too."""
    assert one.untuned is not None
    return final_gap(one.untuned) / one.final if np.isfinite(one.final) else np.nan


def _round_ratio(one: Standing) -> float:
    """NaN where the best does not arrive either; infinite where only the untuned does not."""
    assert one.untuned is not None
    best = float(np.median(rounds_to(one.best, LEVELS[0])))
    return float(np.median(rounds_to(one.untuned, LEVELS[0]))) / max(best, 1) if np.isfinite(best) else np.nan


def by_heterogeneity(problems: list[Problem]) -> dict[float, Problem]:
    """The largest set of problems that differ in nothing else."""
    groups: dict[str, dict[float, Problem]] = {}
    for problem in problems:
        settings = settings_of(problem.study)
        if (step := settings.pop(HETEROGENEITY, None)) is not None:
            groups.setdefault(repr(sorted(settings.items())), {})[float(step)] = problem
    largest = max(groups.values(), key=len, default={})
    return dict(sorted(largest.items()))


@styled
def draw_heterogeneity(steps: dict[float, Problem], title: str) -> Figure:
    """A panel per family."""
    found = [one for problem in steps.values() for one in problem.methods]
    families = _families(list({one.algo: one for one in found}.values()))
    figure, axes = new_figure(2.3 + 0.1 * max(map(len, families.values())), 1, len(families), sharey=True)
    figure.set_figwidth(PAGE)
    for axis, (family, members) in zip(axes[0], families.items(), strict=True):
        for i, member in enumerate(members):
            ends = {step: one for step, problem in steps.items() if (one := problem.of(member.algo))}
            look = line_options(algorithm_style(member.algo)) | {"color": PALETTE[i % len(PALETTE)], "linewidth": 0.9}
            axis.plot(list(ends), [one.final for one in ends.values()], label=for_figure(member.label), **look)
            falling = {step: one.final for step, one in ends.items() if one.final > FLOOR and not is_at_rest(one.best)}
            axis.plot(list(falling), list(falling.values()), **look | {"linestyle": "", "markerfacecolor": "white"})
        axis.set_yscale("log")
        axis.set_title(for_figure("\n".join(textwrap.wrap(family, 18))), fontsize=7)
        axis.set_xlabel("heterogeneity", fontsize=7)
        axis.grid(alpha=0.25, linewidth=0.4)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), frameon=False, fontsize=6, handlelength=2.4)
    figure.suptitle(for_figure(title), x=0.01, ha="left")
    return figure
