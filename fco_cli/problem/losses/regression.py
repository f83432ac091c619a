"""Losses of numbers and counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss, label_itself

TINY = 1e-300


class Squared(Loss):
    """(score - y)^2, no 1/2 (docs/method.md, Problem)."""

    name = "squared"
    quadratic = True
    optimal_score = label_itself

    @staticmethod
    @kernel
    def value(scores, y):
        error = scores[0] - y
        return error * error

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = 2 * (scores[0] - y)

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        squared = float(((scores - y) ** 2).mean())
        return {"rmse": squared**0.5, "r2": 1 - squared / max(float(y.var()), TINY)}


delta = np.nan  # bound to Huber's own


@dataclass(frozen=True)
class Huber(Loss):
    """(score - y)^2 up to |score - y| = delta, from there on its tangent: an outlier pulls no harder than delta.

    `delta` is in the labels' units; as it grows this becomes the squared loss.
    """

    name = "huber"
    optimal_score = label_itself
    delta: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.delta < np.inf, "task.huber_delta", self.delta, "a number > 0")

    @property
    def most_curved(self) -> Loss:
        """What it is within delta; where runs start it may be straight."""
        return Squared()

    @staticmethod
    @kernel
    def value(scores, y):
        error = abs(np.float64(scores[0]) - y)
        return delta * (2 * error - delta) if error > delta else error * error

    @staticmethod
    @kernel
    def slope(scores, y):
        error = np.float64(scores[0]) - y
        if error > delta:
            error = delta
        elif error < -delta:
            error = -delta
        scores[0] = 2 * error

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        return {"mae": float(np.abs(scores - y).mean())}


class CurvedAsCounts(Loss):
    """max(y, 1) score^2 / 2: the curvature of the Poisson loss at the start, where the mean is 1, or at the count.

    There is no bound for all scores. This one holds where the means stay at or below their counts or 1; 1/L is half of
    what it allows, so that they may be twice as large.
    """

    @staticmethod
    @kernel
    def value(scores, y):
        return max(y, 1.0) * scores[0] * scores[0] / 2

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] *= max(y, 1.0)


class Poisson(Loss):
    """Half the deviance of counts y whose mean is e^score: e^score - y - y (score - log y), 0 where e^score = y."""

    name = "poisson"

    @property
    def most_curved(self) -> Loss:
        return CurvedAsCounts()

    @staticmethod
    @kernel
    def value(scores, y):
        s = np.float64(scores[0])
        return np.exp(s) - (y * (1 + s - np.log(np.float64(y))) if y > 0 else 0.0)

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = np.exp(scores[0]) - y

    @staticmethod
    @kernel
    def optimal_score(y):
        return np.log(np.float64(y)) if y > 0 else -math.inf

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """D^2, the share of the deviance that is explained: what R^2 is to squares."""
        from scipy.special import xlogy

        ideal, mean = xlogy(y, y).mean(), y.mean()
        left, all_of_it = ideal - mean + np.exp(scores).mean() - (y * scores).mean(), ideal - xlogy(mean, mean)
        return {"d2": float(1 - left / max(all_of_it, TINY))}

    def allowed(self, classes: int | None = None) -> str:
        return "whole numbers >= 0"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        return np.isfinite(y) & (y >= 0) & (y == np.floor(y))
