"""`experiment=successors…`: every method at its best, on one problem after another.

A study here is a problem with a way to take part in it. Of every method stands the best of its grid, all grids being of
one size: what reaches the finest level of the gap soonest, by the median over the seeds. The gap is
(Phi(w) - Phi*) / (Phi(w_0) - Phi*), with the certified optimum of the same seed's data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.files import write_atomically
from fco_cli.reporting import figures
from fco_cli.reporting.design import defaults_of
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Cell, Choice, Spread, choose
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, algorithm_style
from fco_cli.reporting.tables import as_markdown, as_numbers
from fco_cli.reporting.text import as_csv

if TYPE_CHECKING:
    from pandas import DataFrame

LEVELS = (1e-2, 1e-4, 1e-6)  # of the gap
FLOOR = 1e-12  # below which a gap is the optimum's own rounding
COSTS = {"megabytes": "MB", "gradients": "gradients", "prox_calls": "prox calls"}


def gap_of(run: RecordedRun) -> np.ndarray | None:
    """The relative gap at every evaluated round; None where the optimum was not run."""
    if run.optimality_gap is None:
        return None
    objective = run.curves["objective"]
    optimum = objective[-1] - run.optimality_gap
    return np.maximum((objective - optimum) / (objective[0] - optimum), FLOOR)


def cost_of(run: RecordedRun, name: str) -> np.ndarray:
    return run.megabytes if name == "megabytes" else run.curves[name]


@dataclass(frozen=True)
class Standing:
    """A method on one problem, at the best of its grid."""

    study: Study
    choice: Choice  # its grid; what the study's rule chose from it is not used here

    @property
    def algo(self) -> str:
        return self.choice.algo

    @property
    def label(self) -> str:
        return algorithm_style(self.algo).label

    @cached_property
    def best(self) -> Cell:
        return min(self.choice.cells, key=place_of)

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """Of every seed; none where all of the grid diverged."""
        return () if self.best.diverged else self.best.runs

    @cached_property
    def place(self) -> tuple[float, ...]:
        return place_of(self.best)

    @property
    def final(self) -> float:
        return final_gap(self.best)

    def cost_to(self, level: float, name: str) -> float:
        """The median over the seeds; infinite for never."""
        found = []
        for run, at in zip(self.best.runs, rounds_to(self.best, level), strict=True):
            found.append(float(cost_of(run, name)[run.curves["round"] == at][0]) if np.isfinite(at) else np.inf)
        return float(np.median(found))

    @property
    def untuned(self) -> float:
        """The gap at the end with client_lr=auto and the method's default server step and options."""
        default = [cell for cell in self.choice.cells if _is_untuned(cell)]
        return final_gap(default[0]) if default else np.nan

    @property
    def bias(self) -> list[tuple[float, float]]:
        """The gap at the end by client rates, in units of 1/L where they were given so, all else as in the best.

        What diverged is left out.
        """
        chosen = self.best.server_lr, self.best.runs[0].options
        alike = [cell for cell in self.choice.cells if (cell.server_lr, cell.runs[0].options) == chosen]
        found = [(cell.runs[0].relative or cell.client_lr, final_gap(cell)) for cell in alike]
        return sorted((rate, gap) for rate, gap in found if rate is not None and np.isfinite(gap))

    @property
    def slope(self) -> float:
        """Of the gap at the end against the client rate, both on logarithmic axes."""
        known = [(rate, gap) for rate, gap in self.bias if FLOOR < gap < 1]
        if len(known) < 2:
            return np.nan
        rates, gaps = np.log(np.array(known).T)
        return float(np.polyfit(rates, gaps, 1)[0])

    def support_from(self) -> np.ndarray:
        """Of every seed: the first evaluated round from which on the density is the optimum's; infinite for never."""
        optimum = {run.seed: run.final.get("density") for run in self.study.of(OPTIMUM)}
        found = []
        for run in self.runs:
            target = optimum.get(run.seed)
            if target is None or "density" not in run.curves:
                return np.array([np.nan])
            found.append(_from_then_on(run, run.curves["density"] == target))
        return np.array(found) if found else np.array([np.inf])


def place_of(cell: Cell) -> tuple[float, ...]:
    """By which a grid's cells and then the methods are ranked: how soon the finest level, then the coarser ones; then
    the gap at the end."""
    return (*(float(np.median(rounds_to(cell, level))) for level in reversed(LEVELS)), final_gap(cell))


def rounds_to(cell: Cell, level: float) -> np.ndarray:
    """Of every seed: the first evaluated round from which on the gap stays below the level; infinite for never."""
    gaps = [None if run.diverged else gap_of(run) for run in cell.runs]
    runs = zip(cell.runs, gaps, strict=True)
    return np.array([np.inf if gap is None else _from_then_on(run, gap <= level) for run, gap in runs])


def final_gap(cell: Cell) -> float:
    """The median over the seeds of the gap at the end; infinite where it diverged."""
    gaps = [gap[-1] for run in cell.runs if (gap := gap_of(run)) is not None]
    return float(np.median(gaps)) if gaps and not cell.diverged else np.inf


def _is_untuned(cell: Cell) -> bool:
    run = cell.runs[0]
    server_lr, options = defaults_of(cell.algo)
    return run.relative == 1 and run.server_lr in (None, server_lr) and run.options == options


def _from_then_on(run: RecordedRun, holds: np.ndarray) -> float:
    """The first evaluated round from which on it holds to the end."""
    if not holds[-1]:
        return np.inf
    broken = np.flatnonzero(~holds)
    return float(run.curves["round"][broken[-1] + 1 if len(broken) else 0])


def standings(study: Study) -> list[Standing]:
    """The federated methods of a problem, the best first."""
    found = [Standing(study, choice) for choice in choose(study).values() if choice.federated]
    return sorted(found, key=lambda one: (one.place, one.algo))


def table(studies: Iterable[Study]) -> DataFrame:
    """A row per problem and method: all that the page and the figures say, in numbers."""
    import pandas as pd

    rows = []
    for study in studies:
        for place, one in enumerate(standings(study), start=1):
            row: dict[str, object] = {"problem": study.heading, "place": place, "method": one.label, "algo": one.algo}
            row["chosen"] = one.best.rates
            for level in LEVELS:
                row[f"rounds to {level:g}"] = Spread.of(rounds_to(one.best, level))
            for name, words in COSTS.items():
                row[f"{words} to {LEVELS[1]:g}"] = one.cost_to(LEVELS[1], name)
            row["gap at the end"] = one.final
            row["gap with client_lr=auto"] = one.untuned
            row["slope against client_lr"] = one.slope
            row["optimum's density from"] = Spread.of(one.support_from())
            row["diverged"] = f"{one.choice.diverged} of {len(one.choice.cells)}"
            row["seeds"] = len(one.runs)
            rows.append(row)
    return pd.DataFrame(rows)


def in_words(numbers: DataFrame) -> DataFrame:
    """The table for people: what is infinite never happens; an infinite gap is that of a method that diverged."""
    return numbers.apply(lambda column: column.map(lambda value: _said(value, str(column.name).startswith("gap"))))


def _said(value: object, is_gap: bool) -> object:
    if isinstance(value, Spread):
        if np.isnan(value.median):
            return "–"
        middle, low, high = (_said(number, is_gap) for number in value)
        return middle if low == high else f"{middle} ({low}–{high})"
    if isinstance(value, float):
        return ("diverged" if is_gap else "never") if np.isinf(value) else "–" if np.isnan(value) else f"{value:.3g}"
    return value


def finding(study: Study) -> str:
    """Who arrives on a problem, who comes nearest of those that do not, and what is not decided."""
    found = standings(study)
    finest = LEVELS[-1]
    there = [one for one in found if np.isfinite(one.place[0])]
    others = sorted((one for one in found if one not in there and np.isfinite(one.final)), key=lambda one: one.final)
    said_there = ", ".join(f"{one.label} ({one.place[0]:.0f})" for one in there) or "nobody"
    sentence = f"{study.heading}: to {finest:g} come {said_there}"
    if others:
        sentence += f"; of the others {others[0].label} ends nearest, at {others[0].final:.1e}"
    if not there:
        sentence += "; which methods are exact is not decided in so many rounds"
    return sentence + "."


@dataclass(frozen=True)
class Leaderboard:
    """What the page shows."""

    figures: dict[str, Path]  # by what they show
    by_problem: dict[str, DataFrame]
    findings: list[str]


def save(studies: list[Study], folder: Path) -> Leaderboard | None:
    """Write tables/leaderboard.csv and .md and the figures to a report's folder."""
    from fco_cli.reporting import leaderboard_figures as drawings

    studies = [study for study in studies if study.of(OPTIMUM) and standings(study)]
    if not studies:
        return None
    whole = table(studies)
    groups = in_words(whole).groupby("problem", sort=False)
    by_problem = {str(problem): mine.drop(columns=["problem", "algo"]) for problem, mine in groups}
    text = "\n".join(f"## {problem}\n\n{as_markdown(mine)}" for problem, mine in by_problem.items())
    findings = [finding(study) for study in studies]
    said_first = "".join(f"- {sentence}\n" for sentence in findings)
    write_atomically(folder / "tables" / "leaderboard.csv", as_csv(as_numbers(whole)).encode())
    write_atomically(folder / "tables" / "leaderboard.md", f"# Leaderboard\n\n{said_first}\n{text}".encode())
    drawn = {"leaderboard": ("Rounds to a gap of 1e-4, every method on every problem", drawings.draw_map(studies))}
    for study in studies:
        drawn[f"leaderboard_{study.slug}"] = (
            f"{study.heading}: the gap against what it costs",
            drawings.draw_gaps(study),
        )
        if any(np.isfinite(one.slope) for one in standings(study)):
            heading = f"{study.heading}: the gap at the end against the client rate"
            drawn[f"leaderboard_{study.slug}_bias"] = heading, drawings.draw_bias(study)
    saved = {}
    for name, (heading, figure) in drawn.items():
        saved[heading], _ = figures.save(figure, folder / "figures" / name)
    return Leaderboard(saved, by_problem, findings)
