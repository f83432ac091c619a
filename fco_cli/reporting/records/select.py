"""Selection of the best learning rates by a rule, with ties and divergence, and the rounds to reach a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.studies import RecordedStudy, Results, Rule
from fco_cli.reporting.text import printable

TIE = 1e-9  # relative difference below which scores count as equal (rounding of sums)
EDGE = "†"  # marks a choice on the edge of its grid
TARGET_SHARE = 0.9  # of the way from the start to the best score


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


def describe_spread(study: RecordedStudy) -> str:
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


Key = Callable[[Cell], tuple[float, ...]]


def choose(study: RecordedStudy, rule: Rule | None = None, key: Key | None = None) -> dict[str, Choice]:
    """Choose the best cell of every algorithm of a study, by its own rule unless another one is given.

    With a `key`, the best cell is the one with the smallest key among those that did not diverge.
    """
    rule = rule or study.rule
    return {algo: choose_from(algo, _cells(study.of(algo), rule), rule, key) for algo in study.algorithms}


def in_order(choices: dict[str, Choice], algorithms: Sequence[str]) -> dict[str, Choice]:
    """Return the choices with the given algorithms first, in their order."""
    first = [algo for algo in algorithms if algo in choices]
    return {algo: choices[algo] for algo in dict.fromkeys([*first, *choices])}


def chosen_runs(results: Results) -> Results:
    """Return the results restricted to every algorithm's best cell; all cells are kept if every one diverged."""

    def chosen(study: RecordedStudy) -> RecordedStudy:
        choices = choose(study).values()
        cells = [cell for choice in choices for cell in ([choice.best] if choice.best else choice.cells)]
        return replace(study, runs=[run for cell in cells for run in cell.runs])

    return replace(results, studies=[chosen(study) for study in results.studies])


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


def choose_from(algo: str, cells: tuple[Cell, ...], rule: Rule, key: Key | None = None) -> Choice:
    """Choose the best of an algorithm's cells by a rule or a key; include the cells that tie with it."""
    if key is None:
        tied = _tied_by_score(cells, rule)
    else:
        keys = [(key(cell), cell) for cell in cells if not cell.diverged]
        tied = [cell for value, cell in keys if value == min(value for value, _ in keys)]
    # Break ties by the second metric at the end, then by smaller rates: independent of the order of the runs.
    best = min(
        tied,
        key=lambda cell: (_second(cell, rule), cell.client_lr or 0.0, cell.server_lr or 0.0, cell.options),
        default=None,
    )
    return Choice(algo, cells, best, tuple(tied))


def _tied_by_score(cells: tuple[Cell, ...], rule: Rule) -> list[Cell]:
    sign = 1.0 if rule.mode == "max" else -1.0
    candidates = [cell for cell in cells if np.isfinite(cell.score)]
    top = max((sign * cell.score for cell in candidates), default=0.0)
    return [cell for cell in candidates if sign * cell.score >= top - TIE * abs(top)]


def _second(cell: Cell, rule: Rule) -> float:
    value = cell.mean(rule.second, rule.last)
    return value if np.isfinite(value) else np.inf


# Rounds to reach a target. `first_round` is the definition of reaching.


def target(study: RecordedStudy, choices: dict[str, Choice]) -> float | None:
    """Return the target of the selection metric: TARGET_SHARE of the way from its start to the best federated score."""
    chosen = [choice.best for choice in choices.values() if choice.best is not None and choice.federated]
    if not chosen:
        return None
    pick = max if study.rule.mode == "max" else min
    start, best = chosen[0].curve(study.rule.metric).median[0], pick(cell.score for cell in chosen)
    level = float(start + TARGET_SHARE * (best - start))
    return level if np.isfinite(level) else None


def arrival(cell: Cell, level: float) -> float | None:
    """Return the first evaluated round at which the median over the seeds reaches the target; None for never."""
    curve = cell.curve(cell.rule.metric)
    reached = curve.median >= level if cell.rule.mode == "max" else curve.median <= level
    at = first_round(curve.rounds, reached)
    return at if np.isfinite(at) else None
