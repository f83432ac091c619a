"""Results of each method on a problem of the leaderboard (`experiment=successors…`), at the best cell of its grid.

All grids have the same size. The best cell reaches the smallest level of the gap in the fewest rounds; if no cell does,
it has the smallest final gap. Both numbers are medians over the seeds. The gap is
(Phi(w) - Phi*) / (Phi(w_0) - Phi*), where Phi* is the certified optimum on the data of the same seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np

from fco_cli.reporting import (
    OPTIMUM,
    Cell,
    Choice,
    RecordedRun,
    RecordedStudy,
    algorithm_style,
    choose,
    defaults_of,
    first_round,
    is_number,
)

LEVELS = (1e-2, 1e-4, 1e-6)  # of the gap
FLOOR = 1e-12  # gaps below this are rounding errors of the optimum
FOR_GOOD = 1.0  # share of the later rounds in which a reached level must hold
MIN_DECREASE = 1.1  # factor over the last quarter of the rounds below which a gap counts as stalled
ALL_ROWS = 1_000_000  # batch size from which gradients are exact, as in conf/base/leaderboard.yaml
EXACT, BIASED, NOISY, OPEN, DIVERGED = "exact", "biased", "noisy", "open", "diverged"  # classes of exactness
STRUCTURE = ("rank", "density")  # metrics that psi reduces; the first one recorded is used


def gap_of(run: RecordedRun) -> np.ndarray | None:
    """Return the relative gap at every evaluated round; None if the optimum is unknown or is the starting point."""
    if run.optimality_gap is None:
        return None
    objective = run.curves["objective"]
    optimum = objective[-1] - run.optimality_gap
    at_start = objective[0] - optimum
    return np.maximum((objective - optimum) / at_start, FLOOR) if at_start > 0 else None


def cost_of(run: RecordedRun, name: str) -> np.ndarray | None:
    """Return a cost at every evaluated round; None if it was not recorded."""
    return run.megabytes if name == "megabytes" else run.curves.get(name)


@dataclass(frozen=True)
class MethodResult:
    """Result of a method on one problem, at the best cell of its grid."""

    study: RecordedStudy
    choice: Choice  # by `rank_key`

    @property
    def algo(self) -> str:
        return self.choice.algo

    @property
    def label(self) -> str:
        return algorithm_style(self.algo).label

    @property
    def family(self) -> str:
        return algorithm_style(self.algo).family

    @property
    def best(self) -> Cell:
        """Best cell; any cell if the whole grid diverged."""
        return self.choice.best or self.choice.cells[0]

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """Runs of the best cell, one per seed; empty if the whole grid diverged."""
        return () if self.best.diverged else self.best.runs

    @cached_property
    def place(self) -> tuple[float, float]:
        return rank_key(self.best)

    @cached_property
    def final(self) -> float:
        return final_gap(self.best)

    def cost_to(self, level: float, name: str) -> float:
        """Return the median cost to reach a level; infinite if it is never reached, NaN if the cost is unknown."""
        values = []
        for run, at in zip(self.best.runs, rounds_to(self.best, level), strict=True):
            if (costs := cost_of(run, name)) is None:
                return np.nan
            values.append(float(costs[run.curves["round"] == at][0]) if np.isfinite(at) else np.inf)
        return float(np.median(values))

    @cached_property
    def exactness(self) -> str:
        """Class of the best cell on this problem.

        exact: every seed reaches the smallest level. Otherwise, biased: the gap no longer decreases; noisy: likewise,
        with gradients of batches; open: it still decreases; diverged: no cell of the grid has a result.
        """
        if not np.isfinite(self.final):
            return DIVERGED
        if np.isfinite(rounds_to(self.best, LEVELS[-1])).all():
            return EXACT
        if not has_stalled(self.best):
            return OPEN
        return BIASED if has_exact_gradients(self.study) else NOISY

    def spent(self, name: str) -> float:
        """Return the cost of all runs of the grid per seed; NaN if a run did not record it."""
        runs = [run for cell in self.choice.cells for run in cell.runs]
        costs = [cost_of(run, name) for run in runs]
        ends = [np.nan if cost is None else float(cost[-1]) for cost in costs]
        return float(np.sum(ends)) / len({run.seed for run in runs})

    @cached_property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """Rounds that all seeds share, and the gaps at these rounds [seeds, rounds]."""
        curves = [(run.curves["round"], gap) for run in self.runs if (gap := gap_of(run)) is not None]
        if not curves:
            return np.empty(0), np.empty((0, 0))
        rounds = reduce(np.intersect1d, [mine for mine, _ in curves])
        return rounds, np.array([gap[np.isin(mine, rounds)] for mine, gap in curves])

    @cached_property
    def untuned(self) -> Cell | None:
        """Cell with client_lr=auto and the method's default server_lr and options; None if it was not run."""
        return next((cell for cell in self.choice.cells if _is_untuned(cell)), None)

    @cached_property
    def by_rate(self) -> list[tuple[float, Cell]]:
        """Cells that differ from the best only in the client rate, sorted by that rate; diverged cells are left out.

        Rates that were given relative to 1/L are in these units.
        """
        chosen = self.best.server_lr, self.best.runs[0].options
        alike = [cell for cell in self.choice.cells if (cell.server_lr, cell.runs[0].options) == chosen]
        rated = [
            (rate, cell) for cell in alike if (rate := _client_rate(cell.runs[0])) and np.isfinite(final_gap(cell))
        ]
        return sorted(rated, key=lambda pair: pair[0])

    @property
    def slope(self) -> float:
        """Slope of the stalled gap against the client rate, both logarithmic; NaN for methods without a bias."""
        known = [(rate, final_gap(cell)) for rate, cell in self.by_rate if has_stalled(cell)]
        if len(known) < 2:
            return np.nan
        rates, gaps = np.log(np.array(known).T)
        return float(np.polyfit(rates, gaps, 1)[0])

    @property
    def edges(self) -> list[str]:
        """Edges of the grid on which the best cell lies; values beyond them were not tried."""
        grid = [dict(_settings(cell.runs[0])) for cell in self.choice.cells]
        edges = []
        for name, value in _settings(self.best.runs[0]):
            values = {one[name] for one in grid if name in one}
            if len(values) > 1 and value in (min(values), max(values)):
                edges.append(f"{'smallest' if value == min(values) else 'largest'} {name}")
        return edges

    @cached_property
    def structure_rounds(self) -> np.ndarray:
        """First evaluated round, per seed, from which the rank or density stays equal to the optimum's.

        The gap must also stay below the largest level: far from the optimum, equal densities are coincidences, such as
        those of a dense optimum. Infinite if this never happens.
        """
        name = next((name for name in STRUCTURE if name in self.choice.cells[0].runs[0].curves), "")
        optimum = {run.seed: run.final.get(name) for run in self.study.of(OPTIMUM)}
        if not name or any(optimum.get(run.seed) is None for run in self.runs):
            return np.array([np.nan])
        rounds = []
        for run in self.runs:
            gap = gap_of(run)
            is_equal = run.curves[name] == optimum[run.seed]
            is_near = np.zeros(len(is_equal), bool) if gap is None else gap <= LEVELS[0]
            rounds.append(first_round(run.curves["round"], is_equal & is_near, FOR_GOOD))
        return np.array(rounds or [np.inf])


def rank_key(cell: Cell) -> tuple[float, float]:
    """Return the key that ranks cells and methods: rounds to the smallest level, then the final gap."""
    return float(np.median(rounds_to(cell, LEVELS[-1]))), final_gap(cell)


def rounds_to(cell: Cell, level: float) -> np.ndarray:
    """Return, per seed, the first evaluated round from which the gap stays below the level; infinite for never."""
    gaps = [None if run.diverged else gap_of(run) for run in cell.runs]
    runs = zip(cell.runs, gaps, strict=True)
    return np.array(
        [np.inf if gap is None else first_round(run.curves["round"], gap <= level, FOR_GOOD) for run, gap in runs]
    )


def final_gap(cell: Cell) -> float:
    """Return the median final gap over the seeds; infinite if the cell diverged."""
    gaps = [gap[-1] for run in cell.runs if (gap := gap_of(run)) is not None]
    return float(np.median(gaps)) if gaps and not cell.diverged else np.inf


def has_stalled(cell: Cell) -> bool:
    """Return True if the median gap stopped decreasing above the rounding error: the method is biased."""
    gaps = [gap for run in cell.runs if not run.diverged and (gap := gap_of(run)) is not None]
    if not gaps:
        return False
    ratios = [gap[-1 - len(gap) // 4] / gap[-1] if gap[-1] > FLOOR else np.inf for gap in gaps]
    return bool(np.median(ratios) < MIN_DECREASE)


def has_exact_gradients(study: RecordedStudy) -> bool:
    """Return True if every gradient of the problem is that of all rows of a client."""
    sizes = [run.config["hparams"].get("batch_size") for run in study.runs]
    return all(is_number(size) and size >= ALL_ROWS for size in sizes)


def rank_methods(study: RecordedStudy) -> list[MethodResult]:
    """Return the results of the methods of a problem whose clients send messages, best first."""
    results = [MethodResult(study, choice) for choice in choose(study, key=rank_key).values() if _sends(choice)]
    return sorted(results, key=lambda result: (result.place, result.algo))


def _sends(choice: Choice) -> bool:
    """Return True for federated methods, and for those in simulation only that have a family of the leaderboard."""
    return choice.federated or algorithm_style(choice.algo).family != "others"


def _client_rate(run: RecordedRun) -> float | None:
    return run.relative_client_lr or run.client_lr


def _settings(run: RecordedRun) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a run's numerical settings."""
    pairs = {"client_lr": _client_rate(run), "server_lr": run.server_lr, **run.options}
    return ((name, value) for name, value in pairs.items() if is_number(value))


def _is_untuned(cell: Cell) -> bool:
    run = cell.runs[0]
    server_lr, options = defaults_of(cell.algo)
    automatic = run.relative_client_lr == 1 or run.client_lr is None
    return automatic and run.server_lr in (None, server_lr) and run.options == options
