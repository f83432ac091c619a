"""Settings of a search over hyperparameters, `hydra/sweeper=search` (docs/search.md), and its objectives."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fco_cli.errors import UserError, require

if TYPE_CHECKING:
    from fco_cli.config.schemas import Experiment
    from fco_cli.simulation.hparams import Hparams

SAMPLERS, PRUNING, DIRECTIONS = ("tpe", "random", "grid"), ("none", "halving"), ("minimize", "maximize")
MOST_RUNS = 50_000
RUNG_FRACTIONS = (9, 3)  # halving compares the settings of a batch after 1/9 and 1/3 of the rounds
REDUCTION = 3  # and a third of them continues
# Words at the end of a metric's name from which its direction follows.
MAXIMIZED = ("f1", "precision", "recall", "accuracy", "auc", "concordance", "r2", "d2", "auc_within")
MINIMIZED = ("objective", "loss", "error", "residual", "rounds", "gap", "deviance", "density", "nonzeros", "rank")


@dataclass
class Search:
    """The `search` keys: settings of `hydra/sweeper=search`."""

    metric: Any = None  # column of metrics.csv, test metric or `rounds`; a list: Pareto front; null: of the experiment
    direction: Any = None  # minimize or maximize, a list for several metrics; null: known for common metrics
    last: int | None = None  # rounds over which a metric is averaged; null: of the experiment, or 1
    budget: int = 16  # runs per search, all seeds included
    batch: int = 4  # settings per batch, which is simulated as one stack
    seed: int = 0  # seed of the search, not of the runs
    sampler: str = "tpe"  # tpe, random, or grid (every combination of listed values, in random order)
    pruning: str = "none"  # halving: after 1/9 and 1/3 of the rounds only the best third of a batch continues
    until: int | None = None  # round up to which the sweeper runs; null: the run is not part of a search

    def __post_init__(self) -> None:
        for key in ("budget", "batch"):
            value = getattr(self, key)
            require(1 <= value <= MOST_RUNS, f"search.{key}", value, f"a whole number from 1 to {MOST_RUNS}")
        require(0 <= self.seed < 2**32, "search.seed", self.seed, "a whole number from 0 to 2^32 - 1")
        require(self.last is None or 1 <= self.last < 2**63, "search.last", self.last, "null or a whole number >= 1")
        require(self.until is None or 1 <= self.until < 2**63, "search.until", self.until, "null; the sweeper sets it")
        require(self.sampler in SAMPLERS, "search.sampler", self.sampler, "one of " + ", ".join(SAMPLERS))
        require(self.pruning in PRUNING, "search.pruning", self.pruning, "one of " + ", ".join(PRUNING))
        names, directions = self.names, _texts(self.direction)
        allowed = "null, the name of a metric or a list of different names"
        is_valid = names is not None and len(set(names)) == len(names)
        require(is_valid and (self.metric is None or bool(names)), "search.metric", self.metric, allowed)
        allowed = "null, minimize or maximize, or a list with one of them for every metric"
        is_valid = directions is not None and set(directions) <= set(DIRECTIONS)
        is_valid &= not directions or len(directions) == max(1, len(names or ()))
        require(is_valid, "search.direction", self.direction, allowed)
        is_single = len(names or ()) <= 1
        require(is_single or self.pruning == "none", "search.pruning", self.pruning, "none with several metrics")

    @property
    def names(self) -> list[str] | None:
        """Names of the metrics; empty if the default is requested, None if the value is of another type."""
        return _texts(self.metric)

    def check_run(self, hparams: Hparams) -> None:
        """Raise UserError for numbers of rounds with which runs cannot pause."""
        if self.pruning == "halving":
            allowed = "a whole number with search.pruning=halving"
            require(not hparams.until_converged, "hparams.rounds", hparams.rounds, allowed)
        if self.until is not None:
            is_valid = self.until % hparams.eval_every == 0 or self.until >= hparams.last_round
            require(is_valid, "search.until", self.until, "an evaluated round")

    def check_metrics(self, metrics: Collection[str]) -> None:
        """Raise UserError for a metric that runs do not compute; those of test rows are known at the end."""
        known = [*(metric for metric in metrics if metric != "round"), "rounds"]
        for name in self.names or ():
            is_known = name in known or name.startswith("test_")
            require(is_known, "search.metric", name, "one of " + ", ".join(known))


def _texts(value: Any) -> list[str] | None:
    """Return a text or a list of texts as a list; empty for None, None for anything else."""
    values = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    return values if all(isinstance(one, str) for one in values) else None


@dataclass(frozen=True)
class Objective:
    """Number of a run that a search optimizes."""

    metric: str
    direction: str  # minimize or maximize
    last: int = 1  # rounds over which the metric is averaged

    @property
    def worst(self) -> float:
        """Value of a run that diverged, for sweepers that have no other way to mark it."""
        return math.inf if self.direction == "minimize" else -math.inf

    def __str__(self) -> str:
        window = "" if self.last == 1 else f", mean of the last {self.last} rounds"
        return f"{self.direction} {self.metric}{window}"


def objectives_of(search: Search, experiment: Experiment | None) -> list[Objective]:
    """Return the objectives of a search; by default the selection rule of the experiment, else the objective."""
    rule = None if experiment is None else experiment.select
    last = search.last or (1 if rule is None else rule.last)
    names = search.names or ["objective" if rule is None else rule.metric]
    directions = _texts(search.direction) or [_direction(name, rule) for name in names]
    return [Objective(name, direction, last) for name, direction in zip(names, directions, strict=True)]


def _direction(metric: str, rule: Any) -> str:
    if rule is not None and rule.metric == metric:
        return {"max": "maximize", "min": "minimize"}[rule.mode]
    for direction, words in (("maximize", MAXIMIZED), ("minimize", MINIMIZED)):
        if any(metric == word or metric.endswith(f"_{word}") for word in words):
            return direction
    raise UserError(f"search.direction: unknown for search.metric={metric}, must be minimize or maximize")
