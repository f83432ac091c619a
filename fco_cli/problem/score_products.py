"""Sums of outer products of gradients, from which robust covariance matrices are made.

Let u_i be the gradient of the contribution of row i to F, and U_m the sum of u_i over the rows of client m. The sums
are those of u_i u_i' over rows and of U_m U_m' over clients. If every client has a separate bias, u_i is the
efficient score: the part of the gradient that does not depend on that bias.

A site calls `score_products_of` with its own rows, the simulation with the rows of all clients; the contributions of
the clients are added in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.problem.curvature import (
    Columns,
    add_outer_products,
    dense_columns,
    has_curvature,
    observe_curvature,
    pack,
    packed_size,
    rows_together,
    sparse_columns,
    unpack,
)
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.descent import each_row, model_kernels, observe_nothing, row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear, Model

model: Model = declared(Model)


class ScoreProducts(NamedTuple):
    """Packed sums of outer products of gradients, in the units of F squared."""

    rows: Array  # [A (A + 1) / 2], over rows
    clients: Array | None  # [A (A + 1) / 2], over clients; None if they are not requested

    def unpacked(self) -> tuple[Array, Array | None]:
        """Return both symmetric matrices [A, A]."""
        return unpack(self.rows[None])[0], None if self.clients is None else unpack(self.clients[None])[0]

    def to_arrays(self, exponent: int, with_clients: bool) -> dict[str, Array]:
        """Return the sums as arrays of one model, times 2^exponent: numbers of order 1 in fixed point."""
        assert self.clients is not None
        arrays = {"rows": self.rows} | ({"clients": self.clients} if with_clients else {})
        return {name: np.ldexp(values, exponent)[None] for name, values in arrays.items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], exponent: int) -> ScoreProducts:
        """Return the sums from the arrays of `to_arrays`."""
        rows, clients = (arrays.get(name) for name in ("rows", "clients"))
        assert rows is not None
        return cls(np.ldexp(rows[0], -exponent), None if clients is None else np.ldexp(clients[0], -exponent))


def exponent_for(rows: int) -> int:
    """Return the exponent of the power of two at or above the number of all rows."""
    return max(rows - 1, 0).bit_length()


@kernel
def keep_residuals(scores, y, rows, x, slopes, curvatures):
    """Leave features and slopes as they are: the gradient of a row is its slope times its features."""


@kernel
def center_residuals(scores, y, rows, x, slopes, curvatures):
    """Subtract the mean of the features over the client's rows, weighted by second derivatives."""
    total = 0.0
    for i in range(x.shape[0]):
        total += curvatures[0, 0, i]
    for f in range(x.shape[1]):
        mean = 0.0
        for i in range(x.shape[0]):
            mean += curvatures[0, 0, i] * x[i, f]
        mean = mean / total if total > 0 else 0.0
        for i in range(x.shape[0]):
            x[i, f] -= mean


class ResidualKernels:
    """Kernels of `client_scores` that depend on the data's format, the loss and the model."""

    columns: Kernel  # dense_columns or sparse_columns
    residuals: Kernel  # keep_residuals, center_residuals or the loss's own


parts: ResidualKernels = declared(ResidualKernels)


@kernel
def client_scores(w, x, y, widths, low, high, step, weight, features, places, gradient, packed):
    """Add weight times the gradient [C, F] of the mean loss of the rows low to high, and their sum of outer products.

    packed is [C (C + 1) / 2, F (F + 1) / 2]; `step` rows are read at a time.
    """
    share, outputs = weight / (high - low), widths[-1]
    for begin in range(low, high, step):
        rows = np.arange(begin, min(begin + step, high))
        batch = model.gather(x, rows, rows[:0], outputs)
        scores = model.forward(w, batch, widths)
        before = scores.copy()
        losses = np.empty((1, rows.shape[0]))
        curvatures = np.empty((1, packed.shape[0], rows.shape[0]))
        each_row(scores, y, rows, (losses, curvatures), True)
        own = np.empty((rows.shape[0], features.shape[0]))
        parts.columns(x, rows, features, places, own)
        parts.residuals(before, y, rows, own, scores, curvatures)
        products, k = np.empty((packed.shape[0], rows.shape[0])), 0
        for c in range(outputs):
            for d in range(c, outputs):
                for i in range(rows.shape[0]):
                    products[k, i] = share * scores[0, c, i] * (share * scores[0, d, i])
                k += 1
            for i in range(rows.shape[0]):
                for f in range(features.shape[0]):
                    gradient[c, f] += share * scores[0, c, i] * own[i, f]
        add_outer_products(own, products, packed)


def score_kernel(data: ClientData, model: Model, loss: Loss) -> Kernel:
    """Return `client_scores` for the data's format, a model and a loss; raise UserError if there is none."""
    couples_rows = loss.client_loss is not None
    if not has_curvature(model, loss) or (couples_rows and loss.client_residuals is None):
        raise UserError(f"task: the {loss.name} loss has no scores of rows; choose a model-based covariance")
    observe: Any = observe_nothing
    residuals = loss.bound_kernel("client_residuals") if couples_rows else None
    if not couples_rows:
        kernels = {"value": loss.bound_kernel("value"), "curvature": loss.bound_kernel("curvature")}
        observe = specialize(observe_curvature, on_row=kernels)
        residuals = center_residuals if model.site_bias else keep_residuals
    own = {
        "columns": sparse_columns if isinstance(data.x, SparseRows) else dense_columns,
        "residuals": residuals,
    }
    loop = row_loop(data, model, loss, observe)
    return specialize(client_scores, model=model_kernels(model), each_row=loop, parts=own)


def score_products_of(
    data: ClientData, weights: Array, model: Model, loss: Loss, w: Array, columns: Array | None = None
) -> ScoreProducts:
    """Return the sums over rows and over clients of outer products of gradients of F at a model w [P].

    `weights` [M] are those of the clients in F, `columns` sorted indices of the weights to which the gradients are
    restricted.
    """
    one_client = score_kernel(data, model, loss)
    assert isinstance(model, Linear)
    own = Columns(model, columns)
    place = own.places[own.used]
    step, models = rows_together(data, model, loss), np.ascontiguousarray(w[None], dtype=data.x.dtype)
    by_row = np.zeros((own.pairs, packed_size(len(own.features))))
    by_client = np.zeros(packed_size(len(own.columns)))
    for m in range(data.clients):
        low, high = int(data.offsets[m]), int(data.offsets[m + 1])
        gradient, packed = np.zeros((model.outputs, len(own.features))), np.zeros_like(by_row)
        one_client(
            models, data.x, data.targets, model.widths, low, high, step, float(weights[m]), own.features, own.places,
            gradient, packed,
        )  # fmt: skip
        by_row += packed
        score = gradient[own.outputs, place]
        by_client += pack(np.outer(score, score)[None])[0]
    rows = by_row.ravel() if own.entries is None else by_row.ravel()[own.entries]
    return ScoreProducts(rows, by_client)
