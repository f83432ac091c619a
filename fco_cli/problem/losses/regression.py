"""Losses for regression and for counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss, label_as_score

TINY = 1e-300  # smallest denominator of a metric


class Squared(Loss):
    """Squared loss: (score - y)^2, without a factor 1/2 (docs/paper.md, Problem)."""

    name = "squared"
    quadratic = True
    curvature_at_zero = 2.0
    optimal_score = label_as_score

    @staticmethod
    @kernel
    def value(scores, y):
        error = scores[0] - y
        return error * error

    @staticmethod
    @kernel
    def slope(scores, y):
        scores[0] = 2 * (scores[0] - y)

    @staticmethod
    @kernel
    def curvature(scores, y, out):
        out[0] = 2.0 + 0.0 * scores[0]  # NaN for a score that is not finite

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        squared = float(((scores - y) ** 2).mean())
        return {"rmse": squared**0.5, "r2": 1 - squared / max(float(y.var()), TINY)}


delta = np.nan  # bound by `specialize` to Huber.delta


@dataclass(frozen=True)
class Huber(Loss):
    """Huber loss: (score - y)^2 for |score - y| <= delta, its linear continuation beyond.

    `delta` is in the units of the labels; the squared loss is the limit of large delta.
    """

    name = "huber"
    optimal_score = label_as_score
    delta: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.delta < np.inf, "task.huber_delta", self.delta, "a number > 0")

    @property
    def curvature_bound(self) -> Loss:
        """Squared loss: the Huber loss within delta; at zero scores the Huber loss itself may be linear."""
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

    @staticmethod
    @kernel
    def curvature(scores, y, out):
        """Write the generalized second derivative: 2 within delta, 0 beyond."""
        error = np.float64(scores[0]) - y
        out[0] = (2.0 if abs(error) <= delta else 0.0) + 0.0 * error

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        return {"mae": float(np.abs(scores - y).mean())}


class PoissonCurvature(Loss):
    """Quadratic max(y, 1) score^2 / 2, whose curvature bounds that of the Poisson loss for means up to max(y, 1).

    The curvature of the Poisson loss is its mean, which is 1 at zero scores and unbounded in general. The step size 1/L
    is half of what this bound allows, so that it is stable for means up to twice as large.
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
    """Poisson loss: half the deviance of counts y with mean e^score, e^score - y - y (score - log y)."""

    name = "poisson"
    link = "log"

    @property
    def curvature_bound(self) -> Loss:
        """Quadratic with the curvature of the Poisson loss at the count or at a mean of 1, if that is larger."""
        return PoissonCurvature()

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
    def curvature(scores, y, out):
        out[0] = np.exp(np.float64(scores[0]))

    @staticmethod
    @kernel
    def optimal_score(y):
        return np.log(np.float64(y)) if y > 0 else -math.inf

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """Return D^2, the fraction of the deviance explained, which generalizes R^2."""
        from scipy.special import xlogy

        ideal, mean = xlogy(y, y).mean(), y.mean()
        residual, total = ideal - mean + np.exp(scores).mean() - (y * scores).mean(), ideal - xlogy(mean, mean)
        return {"d2": float(1 - residual / max(total, TINY))}

    def describe_labels(self, classes: int | None = None) -> str:
        return "whole numbers >= 0"

    def accepts_labels(self, y: Array, classes: int | None = None) -> Array:
        return np.isfinite(y) & (y >= 0) & (y == np.floor(y))
