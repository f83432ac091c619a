"""What the tests of claims look at: one seed of a study, at the learning rates that all seeds chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.reporting.records import RecordedRun
from fco_cli.reporting.select import Cell, Choice, choose, finite_mean, first_round, in_window
from fco_cli.reporting.studies import Rule, Study
from fco_cli.reporting.style import OPTIMUM, algorithm_style


class Needs(StrEnum):
    """What has to be run before a claim can be judged."""

    EXPERIMENT = "experiment"  # its experiment, or the one it is compared with
    PROFILE = "profile"  # the experiment at profile=paper
    RUNS = "runs"  # the rest of the experiment, or the experiment as it ships


class NotRun(Exception):
    """The records that would decide a claim do not exist."""

    def __init__(self, reason: str, needs: Needs = Needs.RUNS) -> None:
        super().__init__(reason)
        self.needs = needs


class Diverged(Exception):
    """An algorithm for which no learning rates worked: what is claimed of its result is not so."""


@dataclass(frozen=True)
class Finding:
    """What a test found on one seed; numbers are put together over the seeds, words are counted."""

    holds: bool
    claimed: str
    measured: dict[str, float | str]
    rounds: bool = False  # the numbers are rounds, infinite for never


@dataclass
class Evidence:
    """One seed of a study. Curves are those of the learning rates chosen by all seeds together."""

    study: Study
    seed: int
    rule: Rule
    choices: dict[str, Choice]
    elsewhere: Callable[[str], Evidence] = field(repr=False)  # the same seed of another experiment

    @cached_property
    def own(self) -> dict[str, Choice]:
        """What this seed alone would choose: for claims about learning rates."""
        return self.own_by(self.rule)

    def own_by(self, rule: Rule) -> dict[str, Choice]:
        mine = [run for run in self.study.runs if run.seed == self.seed]
        return choose(Study(**{**vars(self.study), "runs": mine}), rule)

    def own_grid(self, algo: str) -> Choice:
        """All that this seed has of an algorithm, in a sweep that may still be under way."""
        if algo not in self.own:
            raise NotRun(f"no runs of {label(algo)} with seed {self.seed}")
        return self.own[algo]

    def own_choice(self, algo: str) -> Choice:
        self.best(algo)  # refuses what was not run or always diverged
        choice = self.own_grid(algo)
        if choice.best is None:
            raise Diverged(f"all {len(choice.cells)} runs of {label(algo)} with seed {self.seed} diverged")
        return choice

    def best(self, algo: str) -> Cell:
        choice = self.choices.get(algo)
        if choice is None:
            raise NotRun(f"no runs of {algo}")
        if choice.best is None:
            raise Diverged(f"all {len(choice.cells)} learning-rate pairs of {label(algo)} diverged")
        return choice.best

    def run(self, algo: str) -> RecordedRun:
        for run in self.best(algo).runs:
            if run.seed == self.seed:
                return run
        raise NotRun(f"no run of {algo} with seed {self.seed}")

    def curve(self, algo: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Rounds and values."""
        run = self.run(algo)
        if metric not in run.curves:
            raise NotRun(f"no metric {metric} in the records of {algo}")
        return run.curves["round"], run.curves[metric]

    def final(self, algo: str, metric: str, at: int | None = None) -> float:
        """At a round; if none is given, the mean over the experiment's window, at which "converged" values count."""
        rounds, values = self.curve(algo, metric)
        if at is None:
            return finite_mean(values[in_window(rounds, self.rule.last)])
        return float(values[np.searchsorted(rounds, at, side="right") - 1])


def label(algo: str) -> str:
    return algorithm_style(algo).label


@dataclass(frozen=True)
class Level:
    """A value that a metric is to reach: exactly one of the four ways to give it."""

    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    near_optimum: float | None = None  # at most the optimum's value times 1 + this

    def __post_init__(self) -> None:
        given = [value for value in (self.at_least, self.at_most, self.equals, self.near_optimum) if value is not None]
        if len(given) != 1:
            raise ValueError("give one of at_least, at_most, equals, near_optimum")

    def resolve(self, evidence: Evidence, metric: str) -> Level:
        if self.near_optimum is None:
            return self
        return Level(at_most=evidence.final(OPTIMUM, metric) * (1 + self.near_optimum))

    def holds(self, values: Any) -> Any:
        slack = 1e-9  # of means over rounds
        if self.at_least is not None:
            return np.asarray(values) >= self.at_least - slack
        if self.at_most is not None:
            return np.asarray(values) <= self.at_most + slack
        assert self.equals is not None
        return np.abs(np.asarray(values) - self.equals) <= slack

    def __str__(self) -> str:
        if self.near_optimum is not None:
            return f"within {self.near_optimum:.3g} of the optimum's, relatively"
        if self.at_least is not None:
            return f">= {self.at_least:.4g}"
        return f"<= {self.at_most:.4g}" if self.at_most is not None else f"= {self.equals:.4g}"


def round_of_level(evidence: Evidence, algo: str, metric: str, level: Level, stays: float) -> float:
    """Return the first evaluated round after the start at which the level is reached (`first_round`)."""
    rounds, values = evidence.curve(algo, metric)
    return first_round(rounds, level.resolve(evidence, metric).holds(values) & (rounds > 0), stays)
