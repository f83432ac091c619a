"""Losses of a row's scores and label, and the step that every algorithm takes along their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.problem.compiled import Kernel, kernel


@kernel
def squared_values(scores, y, rows):
    """(score - y)^2 per row, no 1/2 (SPEC section 3): [J, B]."""
    values = np.empty((scores.shape[0], scores.shape[2]), scores.dtype)
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            error = scores[j, 0, i] - y[rows[i]]
            values[j, i] = error * error
    return values


@kernel
def squared_slopes(scores, y, rows):
    """Replace scores [J, 1, B] by the loss's derivative."""
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            scores[j, 0, i] = 2 * (scores[j, 0, i] - y[rows[i]])


@kernel
def logistic_values(scores, y, rows):
    """log(1 + e^s) - y s for y in {0, 1}, with no overflow."""
    values = np.empty((scores.shape[0], scores.shape[2]), scores.dtype)
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            s = scores[j, 0, i]
            values[j, i] = max(s, 0.0) - y[rows[i]] * s + np.log1p(np.exp(-abs(s)))
    return values


@kernel
def logistic_slopes(scores, y, rows):
    """sigmoid(s) - y; e^-|s| never overflows."""
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            s = scores[j, 0, i]
            small = np.exp(-abs(s))
            sigmoid = (1.0 if s >= 0 else small) / (1.0 + small)
            scores[j, 0, i] = sigmoid - y[rows[i]]


@kernel
def largest(scores, i):
    """The largest of row i's scores."""
    top = scores[0, i]
    for c in range(1, scores.shape[0]):
        top = max(top, scores[c, i])
    return top


@kernel
def softmax_values(scores, y, rows):
    """log sum_c e^(s_c) - s_y, shifted by the largest score."""
    values = np.empty((scores.shape[0], scores.shape[2]), scores.dtype)
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            top = largest(scores[j], i)
            total = 0.0
            for c in range(scores.shape[1]):
                total += np.exp(scores[j, c, i] - top)
            values[j, i] = np.log(total) + top - scores[j, int(y[rows[i]]), i]
    return values


@kernel
def softmax_slopes(scores, y, rows):
    """Softmax probabilities minus the label's indicator."""
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            top = largest(scores[j], i)
            total = 0.0
            for c in range(scores.shape[1]):
                scores[j, c, i] = np.exp(scores[j, c, i] - top)
                total += scores[j, c, i]
            for c in range(scores.shape[1]):
                scores[j, c, i] /= total
            scores[j, int(y[rows[i]]), i] -= 1.0


@kernel
def no_hits(scores, y, rows):
    """A regression has no accuracy."""
    return np.zeros(scores.shape[0])


@kernel
def binary_hits(scores, y, rows):
    """How many rows have a score on the side of their label: [J]."""
    hits = np.zeros(scores.shape[0])
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            hits[j] += (scores[j, 0, i] > 0) == (y[rows[i]] > 0.5)
    return hits


@kernel
def class_hits(scores, y, rows):
    """How many rows have their largest score, the first of equal ones, at their label: [J]."""
    hits = np.zeros(scores.shape[0])
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            best = 0
            for c in range(1, scores.shape[1]):
                if scores[j, c, i] > scores[j, best, i]:
                    best = c
            hits[j] += best == int(y[rows[i]])
    return hits


@dataclass(frozen=True)
class Loss:
    """A loss by its kernels, which see scores [J, C, B] and the labels of the rows."""

    name: str
    values: Kernel
    slopes: Kernel
    hits: Kernel
    quadratic: bool = False  # then sufficient statistics can replace passes over the data

    ALL: ClassVar[dict[str, Loss]]


Loss.ALL = {
    loss.name: loss
    for loss in (
        Loss("squared", squared_values, squared_slopes, no_hits, quadratic=True),
        Loss("logistic", logistic_values, logistic_slopes, binary_hits),
        Loss("softmax", softmax_values, softmax_slopes, class_hits),
    )
}


def forward(w, x, rows, widths):  # the three names below are bound by `specialise` to a model and a loss
    raise NotImplementedError


def backward(gradient, w, x, rows, widths, slopes):
    raise NotImplementedError


def slopes_of(scores, y, rows):
    raise NotImplementedError


@kernel
def descend(state, query, x, y, rows, widths, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over the rows), in place.

    `state` and `query` may be the same array. `rate` is a vector over the jobs.
    """
    scores = forward(query, x, rows, widths)
    slopes_of(scores, y, rows)
    for j in range(scores.shape[0]):
        step = -rate[j] / rows.shape[0]
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    backward(state, query, x, rows, widths, scores)
