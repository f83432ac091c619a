"""Where a method stands on a problem of `experiment=successors…`: at the best of its grid, all being of one size.

The best is what reaches the finest level of the gap soonest and, where nothing does, what ends with the smallest gap,
by the median over the seeds. The gap is (Phi(w) - Phi*) / (Phi(w_0) - Phi*), with the certified optimum of the same
seed's data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from fco_cli.reporting.design import defaults_of
from fco_cli.reporting.gate import is_number
from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Cell, Choice, choose, first_round
from fco_cli.reporting.studies import Study
from fco_cli.reporting.style import OPTIMUM, algorithm_style, family_of

LEVELS = (1e-2, 1e-4, 1e-6)  # of the gap
FLOOR = 1e-12  # below which a gap is the optimum's own rounding
FOR_GOOD = 1.0  # share of the later rounds in which a reached level holds
STILL_FALLING = 1.1  # times in the last quarter of the rounds
STRUCTURE = ("rank", "density")  # what psi makes small, the first that a problem has


def gap_of(run: RecordedRun) -> np.ndarray | None:
    """The relative gap at every evaluated round; None where the optimum was not run, or the run starts there."""
    if run.optimality_gap is None:
        return None
    objective = run.curves["objective"]
    optimum = objective[-1] - run.optimality_gap
    at_start = objective[0] - optimum
    return np.maximum((objective - optimum) / at_start, FLOOR) if at_start > 0 else None


def cost_of(run: RecordedRun, name: str) -> np.ndarray | None:
    """At every evaluated round; None where the record does not have it."""
    return run.megabytes if name == "megabytes" else run.curves.get(name)


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

    @property
    def family(self) -> str:
        return family_of(self.algo)

    @cached_property
    def best(self) -> Cell:
        return min(self.choice.cells, key=place_of)

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """Of every seed; none where all of the grid diverged."""
        return () if self.best.diverged else self.best.runs

    @cached_property
    def place(self) -> tuple[float, float]:
        return place_of(self.best)

    @cached_property
    def final(self) -> float:
        return final_gap(self.best)

    def cost_to(self, level: float, name: str) -> float:
        """The median over the seeds; infinite for never, NaN where it is not known."""
        found = []
        for run, at in zip(self.best.runs, rounds_to(self.best, level), strict=True):
            if (costs := cost_of(run, name)) is None:
                return np.nan
            found.append(float(costs[run.curves["round"] == at][0]) if np.isfinite(at) else np.inf)
        return float(np.median(found))

    @cached_property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """The rounds that all seeds have, and their gaps there [seeds, rounds]."""
        found = [(run.curves["round"], gap) for run in self.runs if (gap := gap_of(run)) is not None]
        if not found:
            return np.empty(0), np.empty((0, 0))
        rounds = reduce(np.intersect1d, [mine for mine, _ in found])
        return rounds, np.array([gap[np.isin(mine, rounds)] for mine, gap in found])

    @cached_property
    def untuned(self) -> Cell | None:
        """With client_lr=auto and the method's default server step and options."""
        return next((cell for cell in self.choice.cells if _is_untuned(cell)), None)

    @cached_property
    def by_rate(self) -> list[tuple[float, Cell]]:
        """The cells that differ from the best in the client rate alone, by that rate, in units of 1/L where it was
        given so. What diverged is left out."""
        chosen = self.best.server_lr, self.best.runs[0].options
        alike = [cell for cell in self.choice.cells if (cell.server_lr, cell.runs[0].options) == chosen]
        rated = [
            (rate, cell) for cell in alike if (rate := _client_rate(cell.runs[0])) and np.isfinite(final_gap(cell))
        ]
        return sorted(rated, key=lambda pair: pair[0])

    @property
    def slope(self) -> float:
        """Of the gap at which a method rests against the client rate, both on logarithmic axes; NaN for one without a
        bias."""
        known = [(rate, final_gap(cell)) for rate, cell in self.by_rate if is_at_rest(cell)]
        if len(known) < 2:
            return np.nan
        rates, gaps = np.log(np.array(known).T)
        return float(np.polyfit(rates, gaps, 1)[0])

    @property
    def edges(self) -> list[str]:
        """The ends of its grid at which the best lies: what is beyond them was not tried."""
        tried = [dict(_settings(cell.runs[0])) for cell in self.choice.cells]
        mine, found = dict(_settings(self.best.runs[0])), []
        for name, value in mine.items():
            values = {one[name] for one in tried if name in one}
            if len(values) > 1 and value in (min(values), max(values)):
                found.append(f"{'smallest' if value == min(values) else 'largest'} {name}")
        return found

    @cached_property
    def structure_from(self) -> np.ndarray:
        """Of every seed: the first evaluated round from which on the rank or the density is the optimum's; infinite for
        never."""
        name = next((name for name in STRUCTURE if name in self.choice.cells[0].runs[0].curves), "")
        optimum = {run.seed: run.final.get(name) for run in self.study.of(OPTIMUM)}
        if not name or any(optimum.get(run.seed) is None for run in self.runs):
            return np.array([np.nan])
        found = [first_round(run.curves["round"], run.curves[name] == optimum[run.seed], FOR_GOOD) for run in self.runs]
        return np.array(found or [np.inf])


def place_of(cell: Cell) -> tuple[float, float]:
    """By which a grid's cells and then the methods are ranked: how soon the finest level, then the gap at the end."""
    return float(np.median(rounds_to(cell, LEVELS[-1]))), final_gap(cell)


def rounds_to(cell: Cell, level: float) -> np.ndarray:
    """Of every seed: the first evaluated round from which on the gap stays below the level; infinite for never."""
    gaps = [None if run.diverged else gap_of(run) for run in cell.runs]
    runs = zip(cell.runs, gaps, strict=True)
    return np.array(
        [np.inf if gap is None else first_round(run.curves["round"], gap <= level, FOR_GOOD) for run, gap in runs]
    )


def final_gap(cell: Cell) -> float:
    """The median over the seeds of the gap at the end; infinite where it diverged."""
    gaps = [gap[-1] for run in cell.runs if (gap := gap_of(run)) is not None]
    return float(np.median(gaps)) if gaps and not cell.diverged else np.inf


def is_at_rest(cell: Cell) -> bool:
    """Whether the gap of most seeds has stopped falling before the end, above the optimum's rounding: a bias."""
    gaps = [gap for run in cell.runs if not run.diverged and (gap := gap_of(run)) is not None]
    if not gaps:
        return False
    ratios = [gap[-1 - len(gap) // 4] / gap[-1] if gap[-1] > FLOOR else np.inf for gap in gaps]
    return bool(np.median(ratios) < STILL_FALLING)


def standings(study: Study) -> list[Standing]:
    """The federated methods of a problem, the best first."""
    found = [Standing(study, choice) for choice in choose(study).values() if choice.federated]
    return sorted(found, key=lambda one: (one.place, one.algo))


def _client_rate(run: RecordedRun) -> float | None:
    return run.relative or run.client_lr


def _settings(run: RecordedRun) -> Iterator[tuple[str, Any]]:
    """The numbers of a run's grid by their names."""
    pairs = {"client_lr": _client_rate(run), "server_lr": run.server_lr, **run.options}
    return ((name, value) for name, value in pairs.items() if is_number(value))


def _is_untuned(cell: Cell) -> bool:
    run = cell.runs[0]
    server_lr, options = defaults_of(cell.algo)
    automatic = run.relative == 1 or run.client_lr is None
    return automatic and run.server_lr in (None, server_lr) and run.options == options
