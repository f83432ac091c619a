"""The step along a loss's gradient that every algorithm takes, and the one loop over jobs and rows."""

from __future__ import annotations

from typing import Any

from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.data import ClientData, rows_of
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.site_bias import bias_finder, with_site_bias
from fco_cli.problem.models.linear import Model

# These names are bound by `specialize` to a model, a loss and the kind of the data.


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


def see(scores, y, weight, j, i, seen):
    raise NotImplementedError


@kernel
def nothing(scores, y, weight, j, i, seen):
    """A step along the gradient looks at nothing on its way."""


@kernel
def only_label(y, row):
    return y[row]


@kernel
def always_one(y, row):
    return 1.0


@kernel
def label_beside_weight(y, row):
    return y[row, 0]


@kernel
def weight_beside_label(y, row):
    return y[row, 1]


@kernel
def each_row(scores, y, rows, seen, slopes):
    """For every job and row: see its scores, then, if slopes are wanted, replace them in scores [J, C, B] by those.

    A row's loss, and so its slope, counts as often as its weight says.
    """
    for j in range(scores.shape[0]):
        for i in range(scores.shape[2]):
            row, label, weight = scores[j, :, i], label_of(y, rows[i]), weight_of(y, rows[i])
            see(row, label, weight, j, i, seen)
            if slopes:
                slope(row, label)
                for c in range(scores.shape[1]):
                    row[c] *= weight


def of_a_row(data: ClientData, loss: Loss) -> dict[str, Any]:
    """What a loop over rows calls."""
    weighted = data.row_weights is not None
    return {
        "slope": loss.bound("slope"),
        "label_of": label_beside_weight if weighted else only_label,
        "weight_of": weight_beside_label if weighted else always_one,
    }


def over_rows(data: ClientData, model: Model, loss: Loss, seeing: Kernel = nothing) -> Kernel:
    """The loop over jobs and rows for a loss: row by row, or the loss's own where rows depend on each other."""
    if loss.together is not None:
        return specialize(loss.together, see=seeing)
    parts = of_a_row(data, loss)
    rows = specialize(each_row, see=seeing, **parts)
    if not model.site_bias:
        return rows
    return specialize(with_site_bias, each_row=rows, best_bias=bias_finder(parts, loss))


@kernel
def follow(state, query, batch, batches, k, rate, scores):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k, of which these are the scores)."""
    each_row(scores, batches.y, rows_of(batches, k), None, True)
    for j in range(scores.shape[0]):
        step = -rate[j] / scores.shape[2]
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    backward(state, query, batch, batches.widths, scores)


@kernel
def descend(state, query, batches, k, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k), in place.

    `state` and `query` may be the same array. `rate` is a vector over the jobs.
    """
    vectors = query.shape[0] * batches.widths[-1]
    batch = gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = forward(query, batch, batches.widths)
    follow(state, query, batch, batches, k, rate, scores)


@kernel
def descend_dual(z, t, geometry, batches, k, rate, w):
    """z <- z - rate * (gradient of the mean loss over batch k at w = grad (h + t psi)*(z))."""
    primal_for(z, t, geometry, batches, k, w)
    descend(z, w, batches, k, rate)


@kernel
def descend_dual_by_columns(z, t, geometry, batches, k, rate, w):
    """The same by a model that needs no more of w at a time than some columns; w is left alone."""
    vectors = z.shape[0] * batches.widths[-1]
    batch = gather(batches.x, rows_of(batches, k), rows_of(batches, k + 1), vectors)
    scores = forward_from_dual(z, t, geometry, batch, batches.widths)
    follow(z, z, batch, batches, k, rate, scores)


def descent(data: ClientData, model: Model, loss: Loss) -> Kernel:
    """`descend` for a model and a loss, and for such data."""
    return specialize(descend, gather=model.gather, forward=model.forward, follow=_following(data, model, loss))


def dual_descent(data: ClientData, model: Model, loss: Loss, primal_for: Kernel, by_columns: Kernel | None) -> Kernel:
    """`descend_dual` for them; `by_columns` is the primal of any of a vector's weights, where h and psi have one."""
    if by_columns is None or model.forward_from_dual is None:
        return specialize(descend_dual, primal_for=primal_for, descend=descent(data, model, loss))
    forward, following = specialize(model.forward_from_dual, primal=by_columns), _following(data, model, loss)
    return specialize(descend_dual_by_columns, gather=model.gather, forward_from_dual=forward, follow=following)


def _following(data: ClientData, model: Model, loss: Loss) -> Kernel:
    return specialize(follow, backward=model.backward, each_row=over_rows(data, model, loss))
