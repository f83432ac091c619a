"""The leaderboard of `experiment=successors…`: tables, findings and its section of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting import figures
from fco_cli.reporting.method_results import LEVELS, MethodResult, final_gap, has_stalled, rank_methods, rounds_to
from fco_cli.reporting.parallel import parallel_map
from fco_cli.reporting.select import Spread, describe_spread
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, algorithm_order, algorithm_style, family_of
from fco_cli.reporting.tables import as_markdown, as_numbers
from fco_cli.reporting.text import as_csv, for_markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

COSTS = {"megabytes": "MB", "gradients": "gradients", "prox_calls": "prox calls"}


@dataclass(frozen=True)
class Problem:
    """A problem of the leaderboard (one study) with the results of all methods on it."""

    study: Study
    name: str
    methods: list[MethodResult]  # best first

    @property
    def seeds(self) -> str:
        return describe_spread(self.study)

    def of(self, algo: str) -> MethodResult | None:
        return next((one for one in self.methods if one.algo == algo), None)


def problems_of(studies: Iterable[Study]) -> list[Problem]:
    """Return the problems with a certified optimum, sorted by name; ambiguous titles are extended by the variant."""
    studies = [study for study in studies if study.of(OPTIMUM)]
    titles = [(study.title, study.profile) for study in studies]
    problems = []
    for study, title in zip(studies, titles, strict=True):
        extras = [study.profile] if study.profile != "paper" else []
        extras += [study.variant] if titles.count(title) > 1 else []
        name = f"{study.title} ({'; '.join(extras)})" if extras else study.title
        problems.append(Problem(study, name, rank_methods(study)))
    return sorted((problem for problem in problems if problem.methods), key=lambda problem: problem.name)


def methods_of(problems: list[Problem]) -> list[str]:
    """Return all methods, ordered by family."""
    return sorted({one.algo for problem in problems for one in problem.methods}, key=algorithm_order)


def table(problems: list[Problem]) -> DataFrame:
    """Return a row per problem and method with all numbers of the page and the figures."""
    import pandas as pd

    rows = []
    for problem in problems:
        for place, one in enumerate(problem.methods, start=1):
            untuned = one.untuned
            row: dict[str, object] = {"problem": problem.name, "method": one.label, "algo": one.algo, "place": place}
            for level in LEVELS:
                row[f"rounds to {level:g}"] = Spread.of(rounds_to(one.best, level))
            for name, unit in COSTS.items():
                row[f"{unit} to {LEVELS[1]:g}"] = one.cost_to(LEVELS[1], name)
            row["gap at the end"] = one.final
            row["rests"] = has_stalled(one.best)
            row["gap with auto"] = np.nan if untuned is None else final_gap(untuned)
            row[f"rounds to {LEVELS[0]:g} with auto"] = (
                np.nan if untuned is None else float(np.median(rounds_to(untuned, LEVELS[0])))
            )
            row["slope against client_lr"] = one.slope
            row["optimum's density or rank from"] = Spread.of(one.structure_rounds)
            row["chosen"] = one.best.rates
            row["on the edge of its grid"] = ", ".join(one.edges)
            row["diverged"] = f"{one.choice.diverged} of {len(one.choice.cells)}"
            row["seeds"] = len(one.best.runs)
            rows.append(row)
    return pd.DataFrame(rows)


def summary(problems: list[Problem]) -> DataFrame:
    """Return a row per method over all problems; the methods that reach the levels most often come first."""
    import pandas as pd

    rows = []
    for algo in methods_of(problems):
        mine = [(problem, one) for problem in problems if (one := problem.of(algo))]
        row: dict[str, object] = {"method": algorithm_style(algo).label, "problems": len(mine)}
        for level in LEVELS:
            row[f"reaches {level:g}"] = sum(bool(np.isfinite(np.median(rounds_to(one.best, level)))) for _, one in mine)
        row["rests"] = sum(has_stalled(one.best) for _, one in mine)
        row["place"] = Spread.of([problem.methods.index(one) + 1 for problem, one in mine])
        ratios = [final_gap(one.untuned) / one.final for _, one in mine if one.untuned and np.isfinite(one.final)]
        row["gap with auto / best"] = Spread.of(ratios) if ratios else np.nan
        slopes = [one.slope for _, one in mine if np.isfinite(one.slope)]
        row["slope against client_lr"] = float(np.median(slopes)) if slopes else np.nan
        row["family"] = family_of(algo)
        rows.append(row)
    methods = pd.DataFrame(rows)
    return methods.sort_values([f"reaches {level:g}" for level in reversed(LEVELS)], ascending=False, kind="stable")


def format_cells(numbers: DataFrame) -> DataFrame:
    """Return the table as text: infinite numbers become "never", infinite gaps "diverged"."""
    return numbers.apply(
        lambda column: column.map(lambda value: _format_value(value, str(column.name).startswith("gap")))
    )


def _format_value(value: object, is_gap: bool) -> object:
    if isinstance(value, Spread):
        if np.isnan(value.median):
            return "–"
        middle, low, high = (_format_value(number, is_gap) for number in value)
        return middle if low == high else f"{middle} ({low}–{high})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return ("diverged" if is_gap else "never") if np.isinf(value) else "–" if np.isnan(value) else f"{value:.3g}"
    return value


def finding(problem: Problem) -> str:
    """Describe which methods reach the smallest level, the best of the others, and what the seeds leave undecided."""
    level = f"{LEVELS[-1]:.0e}".replace("e-0", "e-")
    reached = [one for one in problem.methods if np.isfinite(one.place[0])]
    others = [one for one in problem.methods if one not in reached and np.isfinite(one.final)]
    rounds = ", ".join(f"{one.label} ({one.place[0]:.0f} rounds)" for one in reached)
    sentence = f"{problem.name}: " + (f"reached {level}: {rounds}" if reached else f"no method reached {level}")
    if others:
        nearest = min(others, key=lambda one: one.final)
        falling = "" if has_stalled(nearest.best) else ", still decreasing"
        which = "of the others" if reached else "overall"
        sentence += f"; smallest final gap {which}: {nearest.label} ({nearest.final:.1e}{falling})"
    if not reached:
        sentence += "; too few rounds to decide which methods are exact"
    elif close := [one.label for one in reached[1:] if _overlap(reached[0], one)]:
        sentence += f"; the seeds do not decide whether {reached[0].label} is faster than {', '.join(close)}"
    return sentence + "."


def _overlap(first: MethodResult, other: MethodResult) -> bool:
    """Return True if the ranges over the seeds of the rounds to the smallest level overlap."""
    return float(rounds_to(other.best, LEVELS[-1]).min()) <= float(rounds_to(first.best, LEVELS[-1]).max())


@dataclass(frozen=True)
class Board:
    """Section of the page on one problem."""

    name: str
    finding: str
    table: DataFrame
    figure: Path


@dataclass(frozen=True)
class Leaderboard:
    """Section of the page on the leaderboard: overview of all problems, then each problem."""

    summary: DataFrame
    overviews: dict[str, Path]  # figures by heading
    boards: list[Board]


def save(studies: list[Study], folder: Path) -> Leaderboard | None:
    """Write the leaderboard's tables and figures to a report's folder; return None if there are no problems.

    The tables are tables/leaderboard.csv, leaderboard_summary.csv and leaderboard.md.
    """
    from fco_cli.reporting import leaderboard_figures as drawings

    problems = problems_of(studies)
    if not problems:
        return None
    whole, by_method = table(problems), summary(problems)
    texts = format_cells(whole).groupby("problem", sort=False)
    overviews = {heading: _save(figure, folder, name) for name, heading, figure in drawings.overviews(problems)}
    pictures = parallel_map(partial(_draw, folder), problems, min_items=3)
    boards = [
        Board(
            problem.name,
            finding(problem),
            texts.get_group(problem.name).drop(columns=["problem", "algo"]),
            picture,
        )
        for problem, picture in zip(problems, pictures, strict=True)
    ]
    parts = ["# Leaderboard\n", as_markdown(format_cells(by_method))]
    parts += [
        f"## {for_markdown(one.name)}\n\n{for_markdown(one.finding)}\n\n{as_markdown(one.table)}" for one in boards
    ]
    contents = {
        "leaderboard.csv": as_csv(as_numbers(whole)),
        "leaderboard_summary.csv": as_csv(as_numbers(by_method)),
        "leaderboard.md": "\n".join(parts),
    }
    for name, content in contents.items():
        write_atomically(folder / "tables" / name, content.encode())
    return Leaderboard(format_cells(by_method), overviews, boards)


def _draw(folder: Path, problem: Problem) -> Path:
    from fco_cli.reporting import leaderboard_figures as drawings

    return _save(drawings.draw_problem(problem), folder, f"leaderboard_{problem.study.slug}")


def _save(figure: Figure, folder: Path, name: str) -> Path:
    return figures.save(figure, folder / "figures" / name)[0]
