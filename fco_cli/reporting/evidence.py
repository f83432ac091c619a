"""Evidence for the tests of claims: one seed of a study, at the learning rates chosen by all seeds."""

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
    """Runs required before a claim can be judged."""

    EXPERIMENT = "experiment"  # its experiment, or the one it is compared with
    PROFILE = "profile"  # the experiment at profile=paper
    RUNS = "runs"  # the rest of the experiment, or the experiment as it ships


class NotRun(Exception):
    """The records that would decide a claim do not exist."""

    def __init__(self, reason: str, needs: Needs = Needs.RUNS) -> None:
        super().__init__(reason)
        self.needs = needs


class Diverged(Exception):
    """All learning rates of an algorithm diverged, so that no claim about its result holds."""


@dataclass(frozen=True)
class Finding:
    """Result of a test on one seed."""

    holds: bool
    claimed: str
    measured: dict[str, float | str]
    rounds: bool = False  # True if the measured numbers are rounds (infinite for never)


@dataclass
class Evidence:
    """One seed of a study. Curves are those of the learning rates chosen by all seeds together."""

    study: Study
    seed: int
    rule: Rule
    choices: dict[str, Choice]
    other_experiment: Callable[[str], Evidence] = field(repr=False)  # the same seed of another experiment

    @cached_property
    def own(self) -> dict[str, Choice]:
        """Choices by this seed alone, for claims about learning rates."""
        return self.own_choices_by(self.rule)

    def own_choices_by(self, rule: Rule) -> dict[str, Choice]:
        """Return the choices by this seed alone and a rule."""
        runs = [run for run in self.study.runs if run.seed == self.seed]
        return choose(Study(**{**vars(self.study), "runs": runs}), rule)

    def own_grid(self, algo: str) -> Choice:
        """Return this seed's grid of an algorithm; raise NotRun if it has no runs yet."""
        if algo not in self.own:
            raise NotRun(f"no runs of {label(algo)} with seed {self.seed}")
        return self.own[algo]

    def own_choice(self, algo: str) -> Choice:
        """Return this seed's choice for an algorithm; raise NotRun or Diverged if there is none."""
        self.best(algo)  # raises NotRun or Diverged
        choice = self.own_grid(algo)
        if choice.best is None:
            raise Diverged(f"all {len(choice.cells)} runs of {label(algo)} with seed {self.seed} diverged")
        return choice

    def best(self, algo: str) -> Cell:
        """Return the cell chosen by all seeds; raise NotRun or Diverged if there is none."""
        choice = self.choices.get(algo)
        if choice is None:
            raise NotRun(f"no runs of {algo}")
        if choice.best is None:
            raise Diverged(f"all {len(choice.cells)} learning-rate pairs of {label(algo)} diverged")
        return choice.best

    def run(self, algo: str) -> RecordedRun:
        """Return this seed's run of the chosen cell."""
        for run in self.best(algo).runs:
            if run.seed == self.seed:
                return run
        raise NotRun(f"no run of {algo} with seed {self.seed}")

    def curve(self, algo: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds and values of a metric."""
        run = self.run(algo)
        if metric not in run.curves:
            raise NotRun(f"no metric {metric} in the records of {algo}")
        return run.curves["round"], run.curves[metric]

    def final(self, algo: str, metric: str, at: int | None = None) -> float:
        """Return a metric at a round; by default its mean over the window of the selection rule."""
        rounds, values = self.curve(algo, metric)
        if at is None:
            return finite_mean(values[in_window(rounds, self.rule.last)])
        return float(values[np.searchsorted(rounds, at, side="right") - 1])


def label(algo: str) -> str:
    return algorithm_style(algo).label


@dataclass(frozen=True)
class Level:
    """Level of a metric, given in exactly one of four ways."""

    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    near_optimum: float | None = None  # relative distance: at most (1 + near_optimum) times the optimum's value

    def __post_init__(self) -> None:
        given = [value for value in (self.at_least, self.at_most, self.equals, self.near_optimum) if value is not None]
        if len(given) != 1:
            raise ValueError("give one of at_least, at_most, equals, near_optimum")

    def resolve(self, evidence: Evidence, metric: str) -> Level:
        """Return the level with `near_optimum` replaced by an absolute bound."""
        if self.near_optimum is None:
            return self
        return Level(at_most=evidence.final(OPTIMUM, metric) * (1 + self.near_optimum))

    def holds(self, values: Any) -> Any:
        """Return elementwise whether the values are at the level."""
        slack = 1e-9  # rounding of means over rounds
        if self.at_least is not None:
            return np.asarray(values) >= self.at_least - slack
        if self.at_most is not None:
            return np.asarray(values) <= self.at_most + slack
        assert self.equals is not None
        return np.abs(np.asarray(values) - self.equals) <= slack

    def __str__(self) -> str:
        if self.near_optimum is not None:
            return f"within a relative distance of {self.near_optimum:.3g} of the optimum's"
        if self.at_least is not None:
            return f">= {self.at_least:.4g}"
        return f"<= {self.at_most:.4g}" if self.at_most is not None else f"= {self.equals:.4g}"


def round_of_level(evidence: Evidence, algo: str, metric: str, level: Level, stays: float) -> float:
    """Return the first evaluated round after the start at which the level is reached (`first_round`)."""
    rounds, values = evidence.curve(algo, metric)
    return first_round(rounds, level.resolve(evidence, metric).holds(values) & (rounds > 0), stays)
