"""Batches of points that Optuna proposes.

The sequence of points depends on the space, the settings and the values of earlier points alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.config.search import Objective, Search
from fco_cli.errors import UserError, install_extra, require
from fco_cli.search.space import Dimension, Point, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

MAX_REPEATS = 30  # repeated points in sequence after which a new one is drawn at random
LARGEST_GRID = 100_000  # points of a space that are enumerated


class Sampler:
    """Source of distinct points.

    With sampler=tpe the first batch is a Latin hypercube: every batch-th part of every dimension has one of its points.
    Optuna's tree-structured Parzen estimator proposes the others. A point is left out if a point with smaller or equal
    learning rates, and equal otherwise, diverged.
    """

    def __init__(self, space: Space, settings: Search, objectives: Sequence[Objective]) -> None:
        self.space, self.settings = space, settings
        if settings.sampler == "grid":
            for one in space.dimensions:
                allowed = "a list of values or range(...) with search.sampler=grid"
                require(math.isfinite(one.size), one.key, f"interval({one.low:g},{one.high:g})", allowed)
            require(space.size <= LARGEST_GRID, "search.sampler", "grid", f"tpe or random: {space.size:.4g} points")
        optuna = _optuna()
        self.random = np.random.default_rng(settings.seed)
        self.seen: set[Point] = set()
        self.pending: dict[Point, Trial] = {}
        self.diverged: list[Point] = []
        self.distributions = {one.key: _distribution(optuna, one) for one in space.dimensions}
        with _quiet():
            sampler = optuna.samplers.RandomSampler(settings.seed)
            if settings.sampler == "tpe":
                started = max(1, min(settings.batch, settings.budget))
                sampler = optuna.samplers.TPESampler(
                    seed=settings.seed, n_startup_trials=started, multivariate=True, constant_liar=True
                )
            directions = [objective.direction for objective in objectives]
            self.study = optuna.create_study(sampler=sampler, directions=directions)
        self.first: list[tuple[float, ...]] = []
        if settings.sampler == "grid":
            points = list(space.points())
            self.first = [points[i] for i in self.random.permutation(len(points))]
        elif settings.sampler == "tpe":
            self.first = list(self._latin_hypercube(settings.batch))

    def ask(self, count: int) -> list[Point]:
        """Return the next points, fewer only if the space has no others."""
        points: list[Point] = []
        with _quiet():
            while len(points) < count and (point := self._next()) is not None:
                points.append(point)
        return points

    def tell(self, point: Point, values: Sequence[float] | None, rung: tuple[int, float] | None = None) -> None:
        """Report the values of a point to the sampler.

        A point without values is worse than all others; `rung` has the round at which it was pruned and its value.
        """
        trial = self.pending.pop(point)
        state = _optuna().trial.TrialState
        with _quiet():
            if values is not None:
                self.study.tell(trial, list(values))
                return
            if rung is not None:
                trial.report(rung[1], rung[0])
            elif self.settings.sampler == "tpe":
                self.diverged.append(point)
            self.study.tell(trial, state=state.PRUNED if len(self.study.directions) == 1 else state.FAIL)

    def _next(self) -> Point | None:
        repeats = 0
        while len(self.seen) < self.space.size:
            if self.first:
                self._enqueue(self.first.pop(0))
            elif repeats > MAX_REPEATS:
                if (parameters := self._unseen()) is None:
                    return None
                self._enqueue(parameters)
            trial = self.study.ask(self.distributions)
            point = self.space.point([trial.params[one.key] for one in self.space.dimensions])
            if self._is_worthwhile(point):
                self.seen.add(point)
                self.pending[point] = trial
                return point
            self.study.tell(trial, state=_optuna().trial.TrialState.FAIL)
            repeats += 1
        return None

    def _enqueue(self, parameters: Sequence[float]) -> None:
        keys = [one.key for one in self.space.dimensions]
        self.study.enqueue_trial(dict(zip(keys, parameters, strict=True)))

    def _unseen(self) -> tuple[float, ...] | None:
        """Return a random worthwhile point; None if none is found."""
        if self.space.size <= LARGEST_GRID:
            points = [one for one in self.space.points() if self._is_worthwhile(self.space.point(one))]
            return points[self.random.integers(len(points))] if points else None
        for _ in range(LARGEST_GRID):
            parameters = tuple(one.at(share) for one, share in zip(self.space.dimensions, self._shares(), strict=True))
            if self._is_worthwhile(self.space.point(parameters)):
                return parameters
        return None

    def _is_worthwhile(self, point: Point) -> bool:
        """Return True for a new point that is not expected to diverge."""
        return point not in self.seen and not any(self._is_beyond(point, other) for other in self.diverged)

    def _is_beyond(self, point: Point, other: Point) -> bool:
        """Return True if a point differs from another one in larger learning rates only."""
        triples = zip(self.space.dimensions, point, other, strict=True)
        return all(a == b or (one.is_rate and float(a) >= float(b)) for one, a, b in triples)

    def _shares(self) -> np.ndarray:
        return self.random.random(len(self.space.dimensions))

    def _latin_hypercube(self, count: int) -> Iterator[tuple[float, ...]]:
        strata = [self.random.permutation(count) for _ in self.space.dimensions]
        for i in range(count):
            shares = [(stratum[i] + share) / count for stratum, share in zip(strata, self._shares(), strict=True)]
            yield tuple(one.at(share) for one, share in zip(self.space.dimensions, shares, strict=True))


def _distribution(optuna: Any, one: Dimension) -> BaseDistribution:
    """Return the distribution of a dimension; listed numbers are searched by index, so that their order counts."""
    kinds = optuna.distributions
    if one.values and not one.is_ordered:
        return kinds.CategoricalDistribution(range(len(one.values)))
    if one.values:
        return kinds.IntDistribution(0, len(one.values) - 1)
    kind = kinds.IntDistribution if one.is_whole else kinds.FloatDistribution
    return kind(one.low, one.high, log=one.is_log)


def _optuna() -> Any:
    try:
        with _quiet():
            import optuna
    except ImportError:
        raise UserError(f"hydra/sweeper: search needs optuna: {install_extra('search')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore Optuna's warnings about options that it calls experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
