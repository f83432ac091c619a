"""Losses: what a row's scores cost, given its label.

A loss is one class, and speaks of one row: of its `value`, its `slope` and, for a classification, its `hit`. The loop
over jobs and rows stands in descent.py. A loss also says which labels it takes, how many scores they need, and what
is worth knowing of the scores of data that were held out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import Kernel, kernel, specialize
from fco_cli.problem.layout import Array
from fco_cli.problem.registry import members

MAX_CLASSES = 10_000
TINY = 1e-300


@kernel
def never(scores, y):
    return False


@kernel
def label_itself(y):
    return np.float64(y)


@dataclass(frozen=True)
class Loss:
    """Its kernels see the scores [C] of one row and the row's label; a field is a number that they may name."""

    name: ClassVar[str]
    value: ClassVar[Kernel]  # value(scores, y) -> number
    slope: ClassVar[Kernel]  # slope(scores, y): the derivatives take the scores' place
    optimal_score: ClassVar[Kernel | None] = None  # optimal_score(y) -> the score that minimizes the value, infinite
    # where the infimum is at infinity; only a loss of one score has one, and only such a loss allows site_bias
    together: ClassVar[Kernel | None] = None  # in place of slope: the whole loop (descent.each_row), where rows of a
    # client depend on each other; only all of them then make a batch
    hit: ClassVar[Kernel] = never  # hit(scores, y) -> whether the scores are right; only a classification has one
    quadratic: ClassVar[bool] = False  # the loss is (score - y)^2: sufficient statistics can replace passes over data

    @property
    def most_curved(self) -> Loss:
        """A loss that says at scores of 0, where runs start, how large steps along this one's slopes may be."""
        return self

    @property
    def classification(self) -> bool:
        return self.hit is not never

    def bound(self, name: str) -> Kernel:
        """One of the kernels, with the loss's own numbers in it."""
        numbers: dict[str, Any] = {key: float(number) for key, number in asdict(self).items()}
        return specialize(getattr(self, name), **numbers)

    # Which labels y [N] there may be; `classes` is how many classes have names, where they have.

    def allowed(self, classes: int | None = None) -> str:
        """In words."""
        return "finite numbers"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        """Label by label."""
        return np.isfinite(y)

    def outputs(self, y: Array, classes: int | None = None) -> int:
        """How many scores a row needs."""
        return 1

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """What else to know of data that were held out, from one score per row: scores [N], y [N], both float64.

        `offsets` say which rows are whose, as in ClientData.
        """
        return {}


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


class Logistic(Loss):
    """log(1 + e^score) - y score for y in {0, 1}; e^-|score| never overflows."""

    name = "logistic"

    @staticmethod
    @kernel
    def value(scores, y):
        s = scores[0]
        return max(s, 0.0) - y * s + np.log1p(np.exp(-abs(s)))

    @staticmethod
    @kernel
    def slope(scores, y):
        s = scores[0]
        small = np.exp(-abs(s))
        sigmoid = (1.0 if s >= 0 else small) / (1.0 + small)
        scores[0] = sigmoid - y

    @staticmethod
    @kernel
    def optimal_score(y):
        return math.inf if y > 0.5 else -math.inf

    @staticmethod
    @kernel
    def hit(scores, y):
        return (scores[0] > 0) == (y > 0.5)

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        return {"auc": area_under_curve(scores, y > 0.5)}

    def allowed(self, classes: int | None = None) -> str:
        return "0 or 1"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        return (y == 0) | (y == 1)


def area_under_curve(scores: Array, positive: Array) -> float:
    """The chance that a positive row scores above a negative one, ties counting half; 0.5 where one kind is absent."""
    from scipy.stats import rankdata

    ahead, behind = int(positive.sum()), int((~positive).sum())
    if ahead == 0 or behind == 0 or not np.isfinite(scores).all():
        return 0.5
    return float((rankdata(scores)[positive].sum() - ahead * (ahead + 1) / 2) / (ahead * behind))


@kernel
def largest(scores):
    top = scores[0]
    for c in range(1, scores.shape[0]):
        top = max(top, scores[c])
    return top


class Softmax(Loss):
    """log sum_c e^(score_c) - score_y, shifted by the largest score.

    It is most curved where all scores are 0, or nearly: two classes at odds may be more so.
    """

    name = "softmax"

    @staticmethod
    @kernel
    def value(scores, y):
        top = largest(scores)
        total = 0.0
        for c in range(scores.shape[0]):
            total += np.exp(scores[c] - top)
        return np.log(total) + top - scores[int(y)]

    @staticmethod
    @kernel
    def slope(scores, y):
        """Probabilities minus the label's indicator."""
        top = largest(scores)
        total = 0.0
        for c in range(scores.shape[0]):
            scores[c] = np.exp(scores[c] - top)
            total += scores[c]
        for c in range(scores.shape[0]):
            scores[c] /= total
        scores[int(y)] -= 1.0

    @staticmethod
    @kernel
    def hit(scores, y):
        """Of equal scores the first counts."""
        best = 0
        for c in range(1, scores.shape[0]):
            if scores[c] > scores[best]:
                best = c
        return best == int(y)

    def allowed(self, classes: int | None = None) -> str:
        return f"whole numbers from 0 to {(classes or MAX_CLASSES) - 1}, at least 2 classes"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        fits = (y >= 0) & (y < (classes or MAX_CLASSES)) & (y == np.floor(y))
        return fits & (not fits.all() or self.outputs(y, classes) > 1)

    def outputs(self, y: Array, classes: int | None = None) -> int:
        return classes or int(y.max()) + 1


def all_losses() -> dict[str, type[Loss]]:
    """Every loss that has a name, by name."""
    import fco_cli.problem.survival  # noqa: F401 - which has one more

    return members(Loss)
