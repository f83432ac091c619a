"""Which learning rates are best, by the experiment's own rule; ties and divergence are part of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.studies import Results, Rule, Study
from fco_cli.reporting.text import printable

TIE = 1e-9  # scores that differ by less, relatively, are equal: the noise of summation

ROBUSTNESS_RANGE = (0.003, 0.3)  # of client_lr * server_lr


def in_window(rounds: np.ndarray, last: int) -> np.ndarray:
    """Which of the evaluated rounds are the last so many; the start is none of them."""
    return rounds > max(rounds[-1] - last, 0)


def window_mean(run: RecordedRun, metric: str, last: int) -> float:
    """The mean over the last rounds; NaN for a run that diverged or does not have the metric."""
    if run.diverged or metric not in run.curves:
        return np.nan
    values = run.curves[metric][in_window(run.curves["round"], last)]
    return finite_mean(values)


def finite_mean(values: np.ndarray) -> float:
    """The mean; NaN where there is none, be it that nothing is to be averaged or that the sum is beyond all numbers."""
    with np.errstate(invalid="ignore", over="ignore"):
        mean = float(values.mean()) if values.size else np.nan
    return mean if np.isfinite(mean) else np.nan


def first_round(rounds: np.ndarray, holds: np.ndarray, stays: float = 0.0) -> float:
    """Return the first evaluated round at which a condition holds and from which on it holds in the share `stays` of
    the evaluated rounds; infinity if there is none. 0: the first time, 1: for good."""
    share = np.cumsum(holds[::-1])[::-1] / np.arange(len(holds), 0, -1)
    reached = holds & (share >= stays - 1e-9)
    return float(rounds[np.argmax(reached)]) if reached.any() else np.inf


class Spread(NamedTuple):
    """A number over the seeds: the median and the range, here and in every figure and table."""

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
    """A metric over the rounds, likewise: the median over the seeds and their range."""

    rounds: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def spread_said(study: Study) -> str:
    """What the bands and brackets of a study show; nothing where it has one seed."""
    return f"median and range over {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""


@dataclass(frozen=True)
class Cell:
    """One pair of learning rates of one algorithm (and its options), with a run for every seed."""

    algo: str
    client_lr: float | None
    server_lr: float | None
    options: str  # the algorithm's own, as text, where the study has several of them
    runs: tuple[RecordedRun, ...]
    rule: Rule

    @property
    def federated(self) -> bool:
        return self.runs[0].federated

    @property
    def diverged(self) -> bool:
        """A pair that diverges with one seed is not to be trusted with another."""
        return any(run.diverged for run in self.runs)

    @cached_property
    def score(self) -> float:
        """By which cells are compared: the mean over the seeds, NaN if one of them diverged."""
        return self.mean(self.rule.metric, self.rule.last)

    def mean(self, metric: str, last: int) -> float:
        return finite_mean(np.array([window_mean(run, metric, last) for run in self.runs]))

    def has(self, metric: str) -> bool:
        return all(metric in run.curves for run in self.runs)

    @property
    def seeds(self) -> int:
        return len({run.seed for run in self.runs})

    def final(self, metric: str, last: int) -> Spread:
        """The mean over the last rounds, of every seed."""
        return Spread.of([window_mean(run, metric, last) for run in self.runs])

    def curve(self, metric: str) -> Curve:
        """At the rounds that all seeds have."""
        rounds = self.runs[0].curves["round"]
        for run in self.runs[1:]:
            rounds = np.intersect1d(rounds, run.curves["round"])
        values = np.array([run.curves[metric][np.isin(run.curves["round"], rounds)] for run in self.runs])
        with np.errstate(invalid="ignore", over="ignore"):
            return Curve(rounds, np.median(values, axis=0), values.min(axis=0), values.max(axis=0))

    @property
    def rates(self) -> str:
        """For people: (client_lr, server_lr) and what else the algorithm was tried with."""
        pair = [f"{rate:g}" for rate in (self.client_lr, self.server_lr) if rate is not None]
        return " ".join(filter(None, (f"({', '.join(pair)})" if pair else "", self.options)))


@dataclass(frozen=True)
class Choice:
    """An algorithm's grid and what was chosen from it."""

    algo: str
    cells: tuple[Cell, ...]
    best: Cell | None  # None if every cell diverged
    tied: tuple[Cell, ...]  # all cells as good as the best, the best included

    @property
    def federated(self) -> bool:
        return self.cells[0].federated

    @property
    def diverged(self) -> int:
        return sum(cell.diverged for cell in self.cells)

    @property
    def on_edge(self) -> tuple[str, ...]:
        """At which ends of its grid the chosen pair lies: what is beyond them was not tried."""
        return () if self.best is None else tuple(_edges(self.best, self.cells))


def _edges(best: Cell, cells: Sequence[Cell]) -> list[str]:
    found = []
    for name, mine, rates in (
        ("client", best.client_lr, {cell.client_lr for cell in cells}),
        ("server", best.server_lr, {cell.server_lr for cell in cells}),
    ):
        known = sorted(rate for rate in rates if rate is not None)
        if len(known) > 1:
            found += [f"{word} {name} rate" for word, end in (("smallest", 0), ("largest", -1)) if mine == known[end]]
    return found


def choose(study: Study, rule: Rule | None = None) -> dict[str, Choice]:
    """The choice of every algorithm of a study, by its own rule or by another."""
    rule = rule or study.rule
    return {algo: choose_from(algo, _cells(study.of(algo), rule), rule) for algo in study.algorithms}


def chosen_runs(results: Results) -> Results:
    """Return the results with the runs of every algorithm's best cell only; with all where each of them diverged."""

    def chosen(study: Study) -> Study:
        choices = choose(study).values()
        cells = [cell for choice in choices for cell in ([choice.best] if choice.best else choice.cells)]
        return replace(study, runs=[run for cell in cells for run in cell.runs])

    studies, search, leaderboard = (
        [chosen(study) for study in kind] for kind in (results.studies, results.search, results.leaderboard)
    )
    return replace(results, studies=studies, search=search, leaderboard=leaderboard)


def _cells(runs: Sequence[RecordedRun], rule: Rule) -> tuple[Cell, ...]:
    said = [{key: printable(value) for key, value in run.options.items()} for run in runs]
    varying = [key for key in dict.fromkeys(key for one in said for key in one) if len({o.get(key) for o in said}) > 1]
    cells: dict[tuple[float | None, float | None, str], list[RecordedRun]] = {}
    for run, mine in zip(runs, said, strict=True):
        words = [f"{key} {mine[key]}" for key in varying if key in mine]
        if run.relative is not None:  # one choice, whatever number the data of a seed make of it
            words = [f"client_lr {run.config['hparams']['client_lr']}", *words]
            cells.setdefault((None, run.server_lr, ", ".join(words)), []).append(run)
        else:
            cells.setdefault((run.client_lr, run.server_lr, ", ".join(words)), []).append(run)
    return tuple(_cell(members, *key, rule) for key, members in cells.items())


def _cell(runs: list[RecordedRun], client_lr: float | None, server_lr: float | None, options: str, rule: Rule) -> Cell:
    """With the middle one of the client rates that came from the data."""
    taken = sorted(run.client_lr for run in runs if run.relative is not None and run.client_lr is not None)
    return Cell(runs[0].algo, taken[len(taken) // 2] if taken else client_lr, server_lr, options, tuple(runs), rule)


def choose_from(algo: str, cells: tuple[Cell, ...], rule: Rule) -> Choice:
    """Return the best of an algorithm's cells by a rule, with those that tie with it."""
    sign = 1.0 if rule.mode == "max" else -1.0
    candidates = [cell for cell in cells if np.isfinite(cell.score)]
    if not candidates:
        return Choice(algo, cells, None, ())
    top = max(sign * cell.score for cell in candidates)
    tied = [cell for cell in candidates if sign * cell.score >= top - TIE * abs(top)]
    # Among equals by the second metric at the end, never by who was there first; then the smaller rates.
    best = min(
        tied,
        key=lambda cell: (_second(cell, rule), cell.client_lr or 0.0, cell.server_lr or 0.0, cell.options),
    )
    return Choice(algo, cells, best, tuple(tied))


def _second(cell: Cell, rule: Rule) -> float:
    value = cell.mean(rule.second, rule.last)
    return value if np.isfinite(value) else np.inf


def robust_pairs(choice: Choice) -> list[Cell]:
    """The cells whose client_lr * server_lr lies in the paper's range, its ends included whatever rounding does."""
    low, high = ROBUSTNESS_RANGE
    kept = []
    for cell in choice.cells:
        product = (cell.client_lr or 0.0) * (cell.server_lr or 0.0)
        if low <= product <= high or np.isclose(product, low) or np.isclose(product, high):
            kept.append(cell)
    return kept
