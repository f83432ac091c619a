"""Batches of a client's rows, gradient steps on them, and the loop over jobs and rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.problem.data import ClientData, Rows, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.base import on_row
from fco_cli.problem.losses.site_bias import bias_finder, with_site_bias
from fco_cli.problem.mirror import primal_of_all
from fco_cli.problem.models.linear import Model


class Batches(NamedTuple):
    """Batches of one client: batch k has the rows `order[edges[k]:edges[k+1]]` of x and y."""

    x: Rows
    y: Array  # ClientData.targets
    order: Array
    edges: Array
    widths: Array  # number of units in every layer of the model
    steps: int  # number of batches


@kernel
def rows_of(batches, k):
    """Return the row indices of batch k; an empty array after the last batch."""
    if k >= batches.edges.shape[0] - 1:
        return batches.order[:0]
    return batches.order[batches.edges[k] : batches.edges[k + 1]]


@kernel
def full_order(rows):
    """Return the order and the edges of one batch of all rows."""
    order, edges = np.empty(rows, np.int64), np.empty(2, np.int64)
    for i in range(rows):
        order[i] = i
    edges[0], edges[1] = 0, rows
    return order, edges


@kernel
def full_batch(batches):
    """Return all rows of the client as one batch."""
    order, edges = full_order(batches.y.shape[0])
    return Batches(batches.x, batches.y, order, edges, batches.widths, 1)


@kernel
def slice_dense(x, low, high):
    """Return the rows low to high without a copy."""
    return x[low:high]


@kernel
def slice_sparse(x, low, high):
    """Return the rows low to high without a copy of their entries."""
    return SparseRows(x.values, x.columns, x.starts[low : high + 1], x.features)


def slice_kernel(x: Rows) -> Kernel:
    """Return the kernel that slices such rows, slice(x, low, high)."""
    return slice_sparse if isinstance(x, SparseRows) else slice_dense


model: Model = declared(Model)


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
            row, label, weight = scores[j, :, i], on_row.label_of(y, rows[i]), on_row.weight_of(y, rows[i])
            on_row.observe(row, label, weight, j, i, observed)
            if slopes:
                on_row.slope(row, label)
                for c in range(scores.shape[1]):
                    row[c] *= weight


def row_kernels(data: ClientData, loss: Loss) -> dict[str, Any]:
    """Return the kernels that a loop over rows calls."""
    weighted = data.row_weights is not None
    return {
        "slope": loss.bound_kernel("slope"),
        "label_of": label_column if weighted else unweighted_label,
        "weight_of": weight_column if weighted else unit_weight,
    }


def row_loop(data: ClientData, model: Model, loss: Loss, observe: Kernel = observe_nothing) -> Kernel:
    """Return the loop over jobs and rows for a loss: `each_row`, or the loss's own if the rows depend on each other."""
    if loss.client_loss is not None:
        return specialize(loss.bound_kernel("client_loss"), on_row={"observe": observe})
    parts = row_kernels(data, loss)
    loop = specialize(each_row, on_row={"observe": observe, **parts})
    if not model.site_bias:
        return loop
    return specialize(with_site_bias, on_row={"each_row": loop}, best_bias=bias_finder(parts, loss))


@kernel
def gradient_step(state, query, batch, batches, k, rate, scores):
    """Update state <- state - rate * (gradient at `query` of the mean loss over batch k), given the batch's scores."""
    each_row(scores, batches.y, rows_of(batches, k), None, True)
    for j in range(scores.shape[0]):
        step = -rate[j] / scores.shape[2]
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    model.backward(state, query, batch, batches.widths, scores)


@kernel
def descend(state, query, batches, k, rate):
    """Update state <- state - rate * (gradient at `query` of the mean loss over batch k), in place.

    `state` and `query` may be the same array. `rate` is a vector over the jobs.
    """
    vectors = query.shape[0] * batches.widths[-1]
    batch = model.gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = model.forward(query, batch, batches.widths)
    gradient_step(state, query, batch, batches, k, rate, scores)


@kernel
def descend_dual(z, t, geometry, batches, k, rate, primal):
    """Update z <- z - rate * (gradient of the mean loss over batch k at grad (h + t psi)*(z)); overwrite `primal`."""
    primal_of_all(z, t, geometry, batches, k, primal)
    descend(z, primal, batches, k, rate)


@kernel
def descend_dual_by_columns(z, t, geometry, batches, k, rate, primal):
    """Update z like `descend_dual`, for a model that computes the primal by blocks of columns; `primal` is unused."""
    vectors = z.shape[0] * batches.widths[-1]
    batch = model.gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = model.forward_from_dual(z, t, geometry, batch, batches.widths)
    gradient_step(z, z, batch, batches, k, rate, scores)


def model_kernels(model: Model) -> dict[str, Kernel]:
    """Return the kernels of a model that do not depend on the geometry."""
    kernels = {"gather": model.gather, "forward": model.forward, "backward": model.backward}
    row_norm = getattr(model, "row_norm", None)  # optional for the models of plug-ins
    return kernels if row_norm is None else kernels | {"row_norm": row_norm}


def cached_by_format(
    build: Callable[[ClientData, Model, Loss], Kernel],
) -> Callable[[ClientData, Model, Loss], Kernel]:
    """Cache the kernels that `build` returns by the format of the rows, the kernels of the model and the loss.

    These determine a kernel; the rows and the size of the model do not.
    """
    kernels: dict[tuple[Any, ...], Kernel] = {}

    @functools.wraps(build)
    def cached(data: ClientData, model: Model, loss: Loss) -> Kernel:
        parts = [getattr(model, name, None) for name in ("gather", "forward", "backward", "row_norm", "site_bias")]
        key = (type(data.x), data.row_weights is None, type(model), *parts, loss)
        if key not in kernels:
            kernels[key] = build(data, model, loss)
        return kernels[key]

    return cached


def descent(data: ClientData, model: Model, loss: Loss, step: Kernel = gradient_step) -> Kernel:
    """Return `descend` for a model, a loss and the data's format; `step` replaces `gradient_step`."""
    own = bind_step(step, data, model, loss)
    return specialize(descend, model=model_kernels(model), gradient_step=own)


def dual_descent(
    data: ClientData, model: Model, loss: Loss, primal: Kernel, by_columns: Kernel | None, step: Kernel = gradient_step
) -> Kernel:
    """Return `descend_dual` with a `primal_of_all` or `primal_of_stored`; `step` replaces `gradient_step`.

    `by_columns` maps any part of a vector to its primal, if h and psi are separable.
    """
    if by_columns is None or model.forward_from_dual is None:
        return specialize(descend_dual, primal_of_all=primal, descend=descent(data, model, loss, step))
    forward = specialize(model.forward_from_dual, on_block={"primal": by_columns})
    own = {"gather": model.gather, "forward_from_dual": forward}
    return specialize(descend_dual_by_columns, model=own, gradient_step=bind_step(step, data, model, loss))


def bind_step(step: Kernel, data: ClientData, model: Model, loss: Loss) -> Kernel:
    """Return `gradient_step`, or a replacement, bound to the kernels of a model and a loss."""
    return specialize(step, model=model_kernels(model), each_row=row_loop(data, model, loss))
