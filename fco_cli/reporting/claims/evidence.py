"""Evidence for the tests of claims: one seed of a study, at the learning rates chosen by all seeds.

Also the findings of tests, their summary over the seeds, and the scaling of the margins of tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.reporting.records.runs import RecordedRun
from fco_cli.reporting.records.select import Cell, Choice, Spread, choose, finite_mean, first_round, in_window
from fco_cli.reporting.records.studies import RecordedStudy, Rule
from fco_cli.reporting.style import OPTIMUM, algorithm_style, metric_style


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

    study: RecordedStudy
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
        return choose(replace(self.study, runs=runs), rule)

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
    """Return an algorithm's label."""
    return algorithm_style(algo).label


def metric_label(metric: str) -> str:
    """Return a metric's label."""
    return metric_style(metric).label


Test = Callable[..., Finding]  # of Evidence, or of Results, and the arguments of the claim


def needs_whole_grid(test: Test) -> Test:
    """Decorate a test that can be decided only with all learning rates of the experiment."""
    test.needs_whole_grid = True  # type: ignore[attr-defined]
    return test


def of_all_results(test: Test) -> Test:
    """Decorate a test that takes all results, instead of one seed of an experiment, and is applied once."""
    test.of_all_results = True  # type: ignore[attr-defined]
    return test


@dataclass(frozen=True)
class Level:
    """Level of a metric, given in exactly one of four ways."""

    at_least: float | None = None
    at_most: float | None = None
    equals: float | None = None
    near_optimum: float | None = None  # relative distance: at most (1 + near_optimum) times the optimum's value

    def __post_init__(self) -> None:
        bounds = [value for value in (self.at_least, self.at_most, self.equals, self.near_optimum) if value is not None]
        if len(bounds) != 1:
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


# Summary over the seeds.


def format_findings(findings: Sequence[Finding]) -> str:
    """Format the measured values of one test over the seeds as a line."""
    parts = []
    for name in findings[0].measured:
        values = [finding.measured[name] for finding in findings if name in finding.measured]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(numbers) < len(values):
            text = _format_texts([str(value) for value in values])
        else:
            text = _format_numbers(numbers, findings[0].rounds)
        parts.append(f"{name} {text}")
    return "; ".join(parts)


def _format_texts(values: Sequence[str]) -> str:
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    return ", ".join(f"{text} ({count} times)" for text, count in counts.most_common())


def _format_numbers(values: Sequence[float], rounds: bool) -> str:
    finite = [value for value in values if np.isfinite(value)]
    if not rounds:
        return str(Spread.of(values))
    if not finite:
        return "never"
    never = f", never on {len(values) - len(finite)} of {len(values)} seeds" if len(finite) < len(values) else ""
    return f"round {Spread.of(finite)}{never}"


# Margins, scaled to measure how sensitive a verdict is to thresholds that we chose.


DISTANCES = ("margin", "within", "near_optimum")
SHARES = ("at_least", "stays", "of_its_way")  # at most 1; their margin is the distance to 1


def scale_margins(arguments: dict[str, Any], share: float) -> dict[str, Any] | None:
    """Return the arguments with their margins multiplied by `share`; None if no threshold is ours.

    The margin of a distance is the distance, of a factor its excess over 1, of a score or share its distance to 1:
    "F1 at least 0.95" at half the margin is "F1 at least 0.975". Rounds, ranks and a perfect score are given by the
    paper and do not change.
    """
    changed: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in DISTANCES:
            changed[name] = value * share
        elif name == "factor":
            changed[name] = 1 + (value - 1) * share
        elif name in SHARES and 0 < value < 1:
            changed[name] = 1 - (1 - value) * share
    return {**arguments, **changed} if changed else None
