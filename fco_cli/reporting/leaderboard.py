"""The leaderboard of `experiment=successors…`: its tables, what they say, and its part of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting import figures
from fco_cli.reporting.many import each
from fco_cli.reporting.select import Spread, spread_said
from fco_cli.reporting.standings import LEVELS, Standing, final_gap, is_at_rest, rounds_to, standings
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
    """A study of the leaderboard: a problem with a way to take part in it, and who stands where."""

    study: Study
    name: str
    methods: list[Standing]  # the best first

    @property
    def seeds(self) -> str:
        return spread_said(self.study)

    def of(self, algo: str) -> Standing | None:
        return next((one for one in self.methods if one.algo == algo), None)


def problems_of(studies: Iterable[Study]) -> list[Problem]:
    """Those with a certified optimum; by their titles, where these tell them apart."""
    studies = [study for study in studies if study.of(OPTIMUM)]
    titles = [(study.title, study.profile) for study in studies]
    found = []
    for study, title in zip(studies, titles, strict=True):
        extras = [study.profile] if study.profile != "paper" else []
        extras += [study.variant] if titles.count(title) > 1 else []
        name = f"{study.title} ({'; '.join(extras)})" if extras else study.title
        found.append(Problem(study, name, standings(study)))
    return sorted((problem for problem in found if problem.methods), key=lambda problem: problem.name)


def methods_of(problems: list[Problem]) -> list[str]:
    """Family by family."""
    return sorted({one.algo for problem in problems for one in problem.methods}, key=algorithm_order)


def table(problems: list[Problem]) -> DataFrame:
    """A row per problem and method: all that the page and the figures say, in numbers."""
    import pandas as pd

    rows = []
    for problem in problems:
        for place, one in enumerate(problem.methods, start=1):
            untuned = one.untuned
            row: dict[str, object] = {"problem": problem.name, "method": one.label, "algo": one.algo, "place": place}
            for level in LEVELS:
                row[f"rounds to {level:g}"] = Spread.of(rounds_to(one.best, level))
            for name, words in COSTS.items():
                row[f"{words} to {LEVELS[1]:g}"] = one.cost_to(LEVELS[1], name)
            row["gap at the end"] = one.final
            row["rests"] = is_at_rest(one.best)
            row["gap with auto"] = np.nan if untuned is None else final_gap(untuned)
            row[f"rounds to {LEVELS[0]:g} with auto"] = (
                np.nan if untuned is None else float(np.median(rounds_to(untuned, LEVELS[0])))
            )
            row["slope against client_lr"] = one.slope
            row["optimum's density or rank from"] = Spread.of(one.structure_from)
            row["chosen"] = one.best.rates
            row["on the edge of its grid"] = ", ".join(one.edges)
            row["diverged"] = f"{one.choice.diverged} of {len(one.choice.cells)}"
            row["seeds"] = len(one.best.runs)
            rows.append(row)
    return pd.DataFrame(rows)


def summary(problems: list[Problem]) -> DataFrame:
    """A row per method over all problems, what arrives on most of them first."""
    import pandas as pd

    rows = []
    for algo in methods_of(problems):
        mine = [(problem, one) for problem in problems if (one := problem.of(algo))]
        row: dict[str, object] = {"method": algorithm_style(algo).label, "problems": len(mine)}
        for level in LEVELS:
            row[f"reaches {level:g}"] = sum(bool(np.isfinite(np.median(rounds_to(one.best, level)))) for _, one in mine)
        row["rests"] = sum(is_at_rest(one.best) for _, one in mine)
        row["place"] = Spread.of([problem.methods.index(one) + 1 for problem, one in mine])
        ratios = [final_gap(one.untuned) / one.final for _, one in mine if one.untuned and np.isfinite(one.final)]
        row["gap with auto / best"] = Spread.of(ratios) if ratios else np.nan
        slopes = [one.slope for _, one in mine if np.isfinite(one.slope)]
        row["slope against client_lr"] = float(np.median(slopes)) if slopes else np.nan
        row["family"] = family_of(algo)
        rows.append(row)
    found = pd.DataFrame(rows)
    return found.sort_values([f"reaches {level:g}" for level in reversed(LEVELS)], ascending=False, kind="stable")


def in_words(numbers: DataFrame) -> DataFrame:
    """The table for people: what is infinite never happens; an infinite gap is that of a method that diverged."""
    return numbers.apply(lambda column: column.map(lambda value: _said(value, str(column.name).startswith("gap"))))


def _said(value: object, is_gap: bool) -> object:
    if isinstance(value, Spread):
        if np.isnan(value.median):
            return "–"
        middle, low, high = (_said(number, is_gap) for number in value)
        return middle if low == high else f"{middle} ({low}–{high})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return ("diverged" if is_gap else "never") if np.isinf(value) else "–" if np.isnan(value) else f"{value:.3g}"
    return value


def finding(problem: Problem) -> str:
    """Who arrives on a problem, who comes nearest of those that do not, and what is not decided."""
    finest = LEVELS[-1]
    there = [one for one in problem.methods if np.isfinite(one.place[0])]
    others = [one for one in problem.methods if one not in there and np.isfinite(one.final)]
    said_there = ", ".join(f"{one.label} ({one.place[0]:.0f})" for one in there)
    sentence = f"{problem.name}: " + (f"to {finest:g} come {said_there}" if there else f"nobody comes to {finest:g}")
    if others:
        nearest = min(others, key=lambda one: one.final)
        falling = "" if is_at_rest(nearest.best) else ", still falling"
        sentence += f"; {'of the others ' * bool(there)}{nearest.label} ends nearest, at {nearest.final:.1e}{falling}"
    if not there:
        sentence += "; which methods are exact is not decided in so many rounds"
    elif close := [one.label for one in there[1:] if _overlap(there[0], one)]:
        sentence += f"; whether {there[0].label} is before {', '.join(close)} is not decided by these seeds"
    return sentence + "."


def _overlap(first: Standing, other: Standing) -> bool:
    """Whether the seeds' ranges of the rounds to the finest level do."""
    return float(rounds_to(other.best, LEVELS[-1]).min()) <= float(rounds_to(first.best, LEVELS[-1]).max())


@dataclass(frozen=True)
class Board:
    """What the page shows of a problem."""

    name: str
    finding: str
    table: DataFrame
    figure: Path


@dataclass(frozen=True)
class Leaderboard:
    """What the page shows: first of all problems, then of each."""

    summary: DataFrame
    overviews: dict[str, Path]  # figures by what they show
    boards: list[Board]


def save(studies: list[Study], folder: Path) -> Leaderboard | None:
    """Write tables/leaderboard.csv, leaderboard_summary.csv, leaderboard.md and the figures to a report's folder."""
    from fco_cli.reporting import leaderboard_figures as drawings

    problems = problems_of(studies)
    if not problems:
        return None
    whole, by_method = table(problems), summary(problems)
    words = in_words(whole).groupby("problem", sort=False)
    overviews = {heading: _save(figure, folder, name) for name, heading, figure in drawings.overviews(problems)}
    pictures = each(partial(_draw, folder), problems, enough=3)
    boards = [
        Board(
            problem.name,
            finding(problem),
            words.get_group(problem.name).drop(columns=["problem", "algo"]),
            picture,
        )
        for problem, picture in zip(problems, pictures, strict=True)
    ]
    parts = ["# Leaderboard\n", as_markdown(in_words(by_method))]
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
    return Leaderboard(in_words(by_method), overviews, boards)


def _draw(folder: Path, problem: Problem) -> Path:
    from fco_cli.reporting import leaderboard_figures as drawings

    return _save(drawings.draw_problem(problem), folder, f"leaderboard_{problem.study.slug}")


def _save(figure: Figure, folder: Path, name: str) -> Path:
    return figures.save(figure, folder / "figures" / name)[0]
