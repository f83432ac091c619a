"""Selection of the best learning rates by an experiment's rule, with ties and divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.studies import Results, Rule, Study
from fco_cli.reporting.text import printable

TIE = 1e-9  # relative difference below which scores count as equal (rounding of sums)

ROBUSTNESS_RANGE = (0.003, 0.3)  # of client_lr * server_lr


def in_window(rounds: np.ndarray, last: int) -> np.ndarray:
    """Return a mask of the evaluated rounds within the `last` rounds; the start (round 0) is never included."""
    return rounds > max(rounds[-1] - last, 0)


def window_mean(run: RecordedRun, metric: str, last: int) -> float:
    """Return a metric's mean over the last rounds; NaN if the run diverged or lacks the metric."""
    if run.diverged or metric not in run.curves:
        return np.nan
    values = run.curves[metric][in_window(run.curves["round"], last)]
    return finite_mean(values)


def finite_mean(values: np.ndarray) -> float:
    """Return the mean; NaN for an empty array or an overflowing sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(values.mean()) if values.size else np.nan
    return mean if np.isfinite(mean) else np.nan


def first_round(rounds: np.ndarray, holds: np.ndarray, stays: float = 0.0) -> float:
    """Return the first evaluated round at which a condition holds and keeps holding; infinity if there is none.

    `stays` is the required share of the rounds from then on: 0 for the first time, 1 for all later rounds.
    """
    share = np.cumsum(holds[::-1])[::-1] / np.arange(len(holds), 0, -1)
    reached = holds & (share >= stays - 1e-9)
    return float(rounds[np.argmax(reached)]) if reached.any() else np.inf


class Spread(NamedTuple):
    """Median and range of a number over the seeds, as shown in every figure and table."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread:
        return cls(float(np.median(values)), float(np.min(values)), float(np.max(values)))

    def __str__(self) -> str:
        middle, low, high = (f"{value:.4g}" for value in self)
        return middle if low == high else f"{middle} ({low}–{high})"


class Curve(NamedTuple):
    """Median and range of a metric over the seeds, at each round."""

    rounds: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def describe_spread(study: Study) -> str:
    """Describe the bands and brackets of a study; empty for a single seed."""
    return f"median and range over {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""


@dataclass(frozen=True)
class Cell:
    """A pair of learning rates of an algorithm (and its options), with one run per seed."""

    algo: str
    client_lr: float | None
    server_lr: float | None
    options: str  # the algorithm's options that vary within the study, as text
    runs: tuple[RecordedRun, ...]
    rule: Rule

    @property
    def federated(self) -> bool:
        return self.runs[0].federated

    @property
    def diverged(self) -> bool:
        """True if any seed diverged."""
        return any(run.diverged for run in self.runs)

    @cached_property
    def score(self) -> float:
        """Selection score: mean over the seeds; NaN if one of them diverged."""
        return self.mean(self.rule.metric, self.rule.last)

    def mean(self, metric: str, last: int) -> float:
        return finite_mean(np.array([window_mean(run, metric, last) for run in self.runs]))

    def has(self, metric: str) -> bool:
        return all(metric in run.curves for run in self.runs)

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    def final(self, metric: str, last: int) -> Spread:
        """Return the spread over the seeds of a metric's mean over the last rounds."""
        return Spread.of([window_mean(run, metric, last) for run in self.runs])

    def curve(self, metric: str) -> Curve:
        """Return a metric's curve at the rounds that all seeds share."""
        rounds = self.runs[0].curves["round"]
        for run in self.runs[1:]:
            rounds = np.intersect1d(rounds, run.curves["round"])
        values = np.array([run.curves[metric][np.isin(run.curves["round"], rounds)] for run in self.runs])
        with np.errstate(invalid="ignore", over="ignore"):
            return Curve(rounds, np.median(values, axis=0), values.min(axis=0), values.max(axis=0))

    @property
    def rates(self) -> str:
        """Label of the cell: (client_lr, server_lr) and varying options."""
        pair = [f"{rate:g}" for rate in (self.client_lr, self.server_lr) if rate is not None]
        return " ".join(filter(None, (f"({', '.join(pair)})" if pair else "", self.options)))


@dataclass(frozen=True)
class Choice:
    """An algorithm's grid and the cell chosen from it."""

    algo: str
    cells: tuple[Cell, ...]
    best: Cell | None  # None if every cell diverged
    tied: tuple[Cell, ...]  # all cells that tie with the best, including it

    @property
    def federated(self) -> bool:
        return self.cells[0].federated

    @property
    def diverged(self) -> int:
        return sum(cell.diverged for cell in self.cells)

    @property
    def on_edge(self) -> tuple[str, ...]:
        """Edges of the grid on which the chosen pair lies; rates beyond them were not tried."""
        return () if self.best is None else tuple(_edges(self.best, self.cells))


def _edges(best: Cell, cells: Sequence[Cell]) -> list[str]:
    edges = []
    for name, mine, rates in (
        ("client", best.client_lr, {cell.client_lr for cell in cells}),
        ("server", best.server_lr, {cell.server_lr for cell in cells}),
    ):
        known = sorted(rate for rate in rates if rate is not None)
        if len(known) > 1:
            edges += [f"{word} {name} rate" for word, end in (("smallest", 0), ("largest", -1)) if mine == known[end]]
    return edges


def choose(study: Study, rule: Rule | None = None) -> dict[str, Choice]:
    """Choose the best cell of every algorithm of a study, by its own rule unless another is given."""
    rule = rule or study.rule
    return {algo: choose_from(algo, _cells(study.of(algo), rule), rule) for algo in study.algorithms}


def chosen_runs(results: Results) -> Results:
    """Return the results restricted to every algorithm's best cell; all cells are kept if every one diverged."""

    def chosen(study: Study) -> Study:
        choices = choose(study).values()
        cells = [cell for choice in choices for cell in ([choice.best] if choice.best else choice.cells)]
        return replace(study, runs=[run for cell in cells for run in cell.runs])

    studies, search, leaderboard = (
        [chosen(study) for study in kind] for kind in (results.studies, results.search, results.leaderboard)
    )
    return replace(results, studies=studies, search=search, leaderboard=leaderboard)


def _cells(runs: Sequence[RecordedRun], rule: Rule) -> tuple[Cell, ...]:
    options = [{key: printable(value) for key, value in run.options.items()} for run in runs]
    keys = dict.fromkeys(key for one in options for key in one)
    varying = [key for key in keys if len({one.get(key) for one in options}) > 1]
    cells: dict[tuple[float | None, float | None, str], list[RecordedRun]] = {}
    for run, mine in zip(runs, options, strict=True):
        labels = [f"{key} {mine[key]}" for key in varying if key in mine]
        if run.relative_client_lr is not None:  # one cell, although its numerical value differs between seeds
            labels = [f"client_lr {run.config['hparams']['client_lr']}", *labels]
            cells.setdefault((None, run.server_lr, ", ".join(labels)), []).append(run)
        else:
            cells.setdefault((run.client_lr, run.server_lr, ", ".join(labels)), []).append(run)
    return tuple(_cell(members, *key, rule) for key, members in cells.items())


def _cell(runs: list[RecordedRun], client_lr: float | None, server_lr: float | None, options: str, rule: Rule) -> Cell:
    """Return a cell of runs; its client rate is the median of the data-dependent rates, if there are any."""
    relative_rates = sorted(
        run.client_lr for run in runs if run.relative_client_lr is not None and run.client_lr is not None
    )
    if relative_rates:
        client_lr = relative_rates[len(relative_rates) // 2]
    return Cell(runs[0].algo, client_lr, server_lr, options, tuple(runs), rule)


def choose_from(algo: str, cells: tuple[Cell, ...], rule: Rule) -> Choice:
    """Choose the best of an algorithm's cells by a rule; include the cells that tie with it."""
    sign = 1.0 if rule.mode == "max" else -1.0
    candidates = [cell for cell in cells if np.isfinite(cell.score)]
    if not candidates:
        return Choice(algo, cells, None, ())
    top = max(sign * cell.score for cell in candidates)
    tied = [cell for cell in candidates if sign * cell.score >= top - TIE * abs(top)]
    # Break ties by the second metric at the end, then by smaller rates: independent of the order of the runs.
    best = min(
        tied,
        key=lambda cell: (_second(cell, rule), cell.client_lr or 0.0, cell.server_lr or 0.0, cell.options),
    )
    return Choice(algo, cells, best, tuple(tied))


def _second(cell: Cell, rule: Rule) -> float:
    value = cell.mean(rule.second, rule.last)
    return value if np.isfinite(value) else np.inf


def pairs_in_paper_range(choice: Choice) -> list[Cell]:
    """Return the cells with client_lr * server_lr in the paper's range, ends included up to rounding."""
    low, high = ROBUSTNESS_RANGE
    kept = []
    for cell in choice.cells:
        product = (cell.client_lr or 0.0) * (cell.server_lr or 0.0)
        if low <= product <= high or np.isclose(product, low) or np.isclose(product, high):
            kept.append(cell)
    return kept
