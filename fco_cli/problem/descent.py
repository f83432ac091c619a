"""Gradient steps on batches, shared by all algorithms, and the loop over jobs and rows."""

from __future__ import annotations

from typing import Any

from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.data import ClientData, rows_of
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.site_bias import bias_finder, with_site_bias
from fco_cli.problem.models.linear import Model

# The following functions are bound by `specialize` to those of a model, a loss and the data's format.


def gather(x, rows, coming, vectors):
    raise NotImplementedError


def forward(w, batch, widths):
    raise NotImplementedError


def backward(gradient, w, batch, widths, slopes):
    raise NotImplementedError


def forward_from_dual(z, t, geometry, batch, widths):
    raise NotImplementedError


def primal_for(z, t, geometry, batches, k, w):
    raise NotImplementedError


def slope(scores, y):
    raise NotImplementedError


def label_of(y, row):
    raise NotImplementedError


def weight_of(y, row):
    raise NotImplementedError


def observe(scores, y, weight, j, i, observed):
    raise NotImplementedError


@kernel
def observe_nothing(scores, y, weight, j, i, observed):
    """Do nothing: a gradient step needs the slopes only."""


@kernel
def unweighted_label(y, row):
    return y[row]


@kernel
def unit_weight(y, row):
    return 1.0


@kernel
def label_column(y, row):
    return y[row, 0]


@kernel
def weight_column(y, row):
    return y[row, 1]


@kernel
def each_row(scores, y, rows, observed, slopes):
    """Call `observe` for every job and row; if `slopes`, then replace scores [J, C, B] by the loss's derivatives.

    The loss of a row, and therefore its derivatives, are multiplied by its weight.
    """
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            row, label, weight = scores[j, :, i], label_of(y, rows[i]), weight_of(y, rows[i])
            observe(row, label, weight, j, i, observed)
            if slopes:
                slope(row, label)
                for c in range(scores.shape[1]):
                    row[c] *= weight


def row_kernels(data: ClientData, loss: Loss) -> dict[str, Any]:
    """Return the kernels that a loop over rows calls."""
    weighted = data.row_weights is not None
    return {
        "slope": loss.bound("slope"),
        "label_of": label_column if weighted else unweighted_label,
        "weight_of": weight_column if weighted else unit_weight,
    }


def row_loop(data: ClientData, model: Model, loss: Loss, observe: Kernel = observe_nothing) -> Kernel:
    """Return the loop over jobs and rows for a loss: `each_row`, or the loss's own if the rows depend on each other."""
    if loss.client_loss is not None:
        return specialize(loss.client_loss, observe=observe)
    parts = row_kernels(data, loss)
    loop = specialize(each_row, observe=observe, **parts)
    if not model.site_bias:
        return loop
    return specialize(with_site_bias, each_row=loop, best_bias=bias_finder(parts, loss))


@kernel
def gradient_step(state, query, batch, batches, k, rate, scores):
    """Update state <- state - rate * (gradient at `query` of the mean loss over batch k), given the batch's scores."""
    each_row(scores, batches.y, rows_of(batches, k), None, True)
    for j in range(scores.shape[0]):
        step = -rate[j] / scores.shape[2]
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    backward(state, query, batch, batches.widths, scores)


@kernel
def descend(state, query, batches, k, rate):
    """Update state <- state - rate * (gradient at `query` of the mean loss over batch k), in place.

    `state` and `query` may be the same array. `rate` is a vector over the jobs.
    """
    vectors = query.shape[0] * batches.widths[-1]
    batch = gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = forward(query, batch, batches.widths)
    gradient_step(state, query, batch, batches, k, rate, scores)


@kernel
def descend_dual(z, t, geometry, batches, k, rate, w):
    """Update z <- z - rate * (gradient of the mean loss over batch k at w = grad (h + t psi)*(z)); w is overwritten."""
    primal_for(z, t, geometry, batches, k, w)
    descend(z, w, batches, k, rate)


@kernel
def descend_dual_by_columns(z, t, geometry, batches, k, rate, w):
    """Update z like `descend_dual`, for a model that computes w by blocks of columns; `w` is not used."""
    vectors = z.shape[0] * batches.widths[-1]
    batch = gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = forward_from_dual(z, t, geometry, batch, batches.widths)
    gradient_step(z, z, batch, batches, k, rate, scores)


def descent(data: ClientData, model: Model, loss: Loss) -> Kernel:
    """Return `descend` for a model, a loss and the data's format."""
    step = _gradient_step(data, model, loss)
    return specialize(descend, gather=model.gather, forward=model.forward, gradient_step=step)


def dual_descent(data: ClientData, model: Model, loss: Loss, primal_for: Kernel, by_columns: Kernel | None) -> Kernel:
    """Return `descend_dual`; `by_columns` maps any part of a vector to its primal, if h and psi are separable."""
    if by_columns is None or model.forward_from_dual is None:
        return specialize(descend_dual, primal_for=primal_for, descend=descent(data, model, loss))
    forward, step = specialize(model.forward_from_dual, primal=by_columns), _gradient_step(data, model, loss)
    return specialize(descend_dual_by_columns, gather=model.gather, forward_from_dual=forward, gradient_step=step)


def _gradient_step(data: ClientData, model: Model, loss: Loss) -> Kernel:
    return specialize(gradient_step, backward=model.backward, each_row=row_loop(data, model, loss))
