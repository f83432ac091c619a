"""The step along a loss's gradient that every algorithm takes, and the one loop over jobs and rows."""

from __future__ import annotations

from fco_cli.problem.compiled import Kernel, kernel, specialize
from fco_cli.problem.losses import Loss
from fco_cli.problem.models import Model


def forward(w, x, rows, widths):  # these names are bound by `specialize` to a model and a loss
    raise NotImplementedError


def backward(gradient, w, x, rows, widths, slopes):
    raise NotImplementedError


def slope(scores, y):
    raise NotImplementedError


def see(scores, y, j, i, seen):
    raise NotImplementedError


@kernel
def nothing(scores, y, j, i, seen):
    """A step along the gradient looks at nothing on its way."""


@kernel
def each_row(scores, y, rows, seen, slopes):
    """For every job and row: see its scores, then, if slopes are wanted, replace them in scores [J, C, B] by those."""
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            row, label = scores[j, :, i], y[rows[i]]
            see(row, label, j, i, seen)
            if slopes:
                slope(row, label)


@kernel
def descend(state, query, batches, k, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k), in place.

    `state` and `query` may be the same array. `rate` is a vector over the jobs.
    """
    rows = batches.order[batches.edges[k] : batches.edges[k + 1]]
    scores = forward(query, batches.x, rows, batches.widths)
    each_row(scores, batches.y, rows, None, True)
    for j in range(scores.shape[0]):
        step = -rate[j] / rows.shape[0]
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    backward(state, query, batches.x, rows, batches.widths, scores)


def descent(model: Model, loss: Loss) -> Kernel:
    """`descend` for a model and a loss."""
    rows = specialize(each_row, see=nothing, slope=loss.bound("slope"))
    return specialize(descend, forward=model.forward, backward=model.backward, each_row=rows)
