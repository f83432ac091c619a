"""Losses for classification."""

from __future__ import annotations

import math

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.losses.base import Loss

MAX_CLASSES = 10_000


class Logistic(Loss):
    """Logistic loss: log(1 + e^score) - y score for y in {0, 1}, computed with e^-|score| to avoid overflow."""

    name = "logistic"
    link = "logit"
    curvature_at_zero = 0.25

    @staticmethod
    @kernel
    def value(scores, y):
        s = scores[0]
        return max(s, 0.0) - y * s + np.log1p(np.exp(-abs(s)))

    @staticmethod
    @kernel
    def slope(scores, y):
        s = scores[0]
        decay = np.exp(-abs(s))
        sigmoid = (1.0 if s >= 0 else decay) / (1.0 + decay)
        scores[0] = sigmoid - y

    @staticmethod
    @kernel
    def curvature(scores, y, out):
        decay = np.exp(-abs(np.float64(scores[0])))
        out[0] = decay / ((1.0 + decay) * (1.0 + decay))

    @staticmethod
    @kernel
    def optimal_score(y):
        return math.inf if y > 0.5 else -math.inf

    @staticmethod
    @kernel
    def is_correct(scores, y):
        return (scores[0] > 0) == (y > 0.5)

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        return {"auc": area_under_curve(scores, y > 0.5)}

    def describe_labels(self, classes: int | None = None) -> str:
        return "0 or 1"

    def accepts_labels(self, y: Array, classes: int | None = None) -> Array:
        return (y == 0) | (y == 1)


def area_under_curve(scores: Array, positive: Array) -> float:
    """Return the area under the ROC curve; 0.5 if a class is absent or a score is not finite."""
    from scipy.stats import rankdata

    positives, negatives = int(positive.sum()), int((~positive).sum())
    if positives == 0 or negatives == 0 or not np.isfinite(scores).all():
        return 0.5
    return float((rankdata(scores)[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def area_interval(area: Array | float, error: Array | float, level: float = 0.95) -> tuple[Array, Array]:
    """Return the ends of the intervals of areas with their standard errors, symmetric on the scale of logits."""
    from scipy.special import expit, logit
    from scipy.stats import norm

    area, error = np.asarray(area, dtype=float), np.asarray(error, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        reach = norm.ppf((1 + level) / 2) * error / (area * (1 - area))
        low, high = expit(logit(area) - reach), expit(logit(area) + reach)
    is_inside = (area > 0) & (area < 1)
    return np.where(is_inside, np.minimum(low, area), area), np.where(is_inside, np.maximum(high, area), area)


@kernel
def largest(scores):
    """Return the largest score."""
    top = scores[0]
    for c in range(1, scores.shape[0]):
        top = max(top, scores[c])
    return top


class Softmax(Loss):
    """Softmax loss: log sum_c e^(score_c) - score_y, shifted by the largest score to avoid overflow.

    The curvature at zero scores is close to its maximum; scores that favor two classes equally may exceed it.
    """

    name = "softmax"
    link = "softmax"

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
        """Overwrite the scores with the probabilities minus the indicator of the label."""
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
    def curvature(scores, y, out):
        """Write diag(p) - p p' for the probabilities p, the upper triangle row by row."""
        top, classes = largest(scores), scores.shape[0]
        p, total, k = np.empty(classes), 0.0, 0
        for c in range(classes):
            p[c] = np.exp(np.float64(scores[c]) - top)
            total += p[c]
        for c in range(classes):
            p[c] /= total
        for c in range(classes):
            others = 0.0  # 1 - p_c, without cancellation
            for b in range(classes):
                others += p[b] if b != c else 0.0
            out[k] = p[c] * others
            for b in range(c + 1, classes):
                out[k + b - c] = -p[c] * p[b]
            k += classes - c

    @staticmethod
    @kernel
    def is_correct(scores, y):
        """Return True if the label has the largest score; of equal scores, the first is the prediction."""
        best = 0
        for c in range(1, scores.shape[0]):
            if scores[c] > scores[best]:
                best = c
        return best == int(y)

    def describe_labels(self, classes: int | None = None) -> str:
        return f"whole numbers from 0 to {(classes or MAX_CLASSES) - 1}, at least 2 classes"

    def accepts_labels(self, y: Array, classes: int | None = None) -> Array:
        is_valid = (y >= 0) & (y < (classes or MAX_CLASSES)) & (y == np.floor(y))
        return is_valid & (not is_valid.all() or self.outputs(y, classes) > 1)

    def outputs(self, y: Array, classes: int | None = None) -> int:
        return classes or int(y.max()) + 1
