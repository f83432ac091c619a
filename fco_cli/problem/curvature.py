"""Value, gradient and Hessian of F at given models, as sums over clients.

The Hessian of a linear model is the sum over rows of c_i a_i a_i', where a = (x, 1) and c_i is the second derivative of
the loss of row i by its score. The products a a' are formed for a few rows at a time and shared by all jobs. Symmetric
matrices are packed: the upper triangle, row by row.

A site calls `quadratic_of` with its own rows, the simulation with the rows of all clients; the contributions of the
clients are added in order. Results are bitwise independent of the number of jobs, threads and sites.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.kernels.products import add_to_columns, batch_in_place
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.descent import cached_by_format, each_row, model_kernels, row_loop
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.base import on_row
from fco_cli.problem.models.linear import Linear, Model

model: Model = declared(Model)
prange = range  # Numba's parallel range in the compiled kernel

JOBS_TOGETHER = 32  # jobs that share the products of a row
ROWS_TOGETHER = 60  # rows whose products are formed at a time, a multiple of five (products.py)
PRODUCTS_TOGETHER = 512  # minimum number of products of a row that are formed at a time


class Quadratic(NamedTuple):
    """Value, gradient and Hessian of F at the models of the jobs, always in float64."""

    value: Array  # [J]
    gradient: Array  # [J, P]
    hessian: Array  # [J, A, A], A = P or the number of `columns`


class PackedQuadratic(NamedTuple):
    """Contribution of clients to a `Quadratic`; contributions are added in the order of the clients."""

    value: Array  # [J]
    gradient: Array  # [J, P]
    hessian: Array  # [J, A (A + 1) / 2], the upper triangle row by row

    def unpacked(self) -> Quadratic:
        return Quadratic(self.value, self.gradient, unpack(self.hessian))


def packed_size(size: int) -> int:
    """Return the number of distinct entries of a symmetric matrix."""
    return size * (size + 1) // 2


def packed_index(a: Array, b: Array, size: int) -> Array:
    """Return the index of the entry (a, b) of a symmetric matrix in its packed form."""
    low, high = np.minimum(a, b), np.maximum(a, b)
    return low * size - low * (low - 1) // 2 + high - low


def unpack(packed: Array) -> Array:
    """Return the symmetric matrices [J, A, A] of packed ones [J, A (A + 1) / 2]."""
    size = int(np.sqrt(2 * packed.shape[1]))
    matrices = np.empty((len(packed), size, size), packed.dtype)
    start = 0
    for a in range(size):
        row = packed[:, start : start + size - a]
        matrices[:, a, a:] = row
        matrices[:, a:, a] = row
        start += size - a
    return matrices


def pack(matrices: Array) -> Array:
    """Return the upper triangles [J, A (A + 1) / 2] of symmetric matrices [J, A, A]."""
    return matrices[(slice(None), *np.triu_indices(matrices.shape[1]))]


@kernel
def dense_columns(x, rows, features, places, out):
    """Assign out[i, f] <- x[rows[i], features[f]]; a feature beyond the last column of x is the constant 1."""
    for i in range(rows.shape[0]):
        for f in range(features.shape[0]):
            out[i, f] = x[rows[i], features[f]] if features[f] < x.shape[1] else 1.0


@kernel
def sparse_columns(x, rows, features, places, out):
    """Assign the columns `features` of sparse rows; places[k] is the position of column k in `features`, or -1."""
    for i in range(rows.shape[0]):
        for f in range(features.shape[0]):
            out[i, f] = 0.0 if features[f] < x.features else 1.0
        for e in range(x.starts[rows[i]], x.starts[rows[i] + 1]):
            if places[x.columns[e]] >= 0:
                out[i, places[x.columns[e]]] += x.values[e]


@kernel
def add_outer_products(x, coefficients, packed):
    """Add sum_i coefficients[v, i] x_i x_i' to the packed matrices packed[v], for rows x [B, F]."""
    size = x.shape[1]
    width = max(PRODUCTS_TOGETHER, size) + size
    products = np.empty((ROWS_TOGETHER, width))
    some = np.empty((coefficients.shape[0], ROWS_TOGETHER))
    for low in range(0, x.shape[0], ROWS_TOGETHER):
        count = min(ROWS_TOGETHER, x.shape[0] - low)
        for v in range(coefficients.shape[0]):
            for i in range(count):
                some[v, i] = coefficients[v, low + i]
        batch, a, start = batch_in_place(products, np.arange(count)), 0, 0
        while a < size:
            columns = 0
            while a < size and columns < max(PRODUCTS_TOGETHER, size):
                for i in range(count):
                    row, factor = x[low + i], x[low + i, a]
                    for b in range(a, size):
                        products[i, columns + b - a] = factor * row[b]
                columns += size - a
                a += 1
            add_to_columns(packed, 1, packed.shape[1], start, batch, 0, columns, some)
            start += columns


@kernel
def observe_curvature(scores, y, weight, j, i, observed):
    """Record the weighted loss of a row and its weighted second derivatives."""
    losses, curvatures = observed
    losses[j, i] = weight * on_row.value(scores, y)
    own = curvatures[j, :, i]
    on_row.curvature(scores, y, own)
    for k in range(own.shape[0]):
        own[k] *= weight


@kernel
def observe_loss(scores, y, weight, j, i, observed):
    """Record the weighted loss of a row."""
    observed[0][j, i] = weight * on_row.value(scores, y)


@kernel
def add_rows_curvature(scores, y, rows, x, share, curvatures, packed):
    """Add the Hessians of rows whose second derivatives are known."""
    for j in range(curvatures.shape[0]):
        for k in range(curvatures.shape[1]):
            for i in range(curvatures.shape[2]):
                curvatures[j, k, i] *= share
    add_outer_products(x, curvatures.reshape((packed.shape[0], curvatures.shape[2])), packed)


@kernel
def add_client_curvature(scores, y, rows, x, share, curvatures, packed):
    """Add the Hessians of a loss that couples the rows of a client and does not change if all rows are shifted."""
    for f in range(x.shape[1]):
        mean = 0.0
        for i in range(x.shape[0]):
            mean += x[i, f]
        mean /= x.shape[0]
        for i in range(x.shape[0]):
            x[i, f] -= mean
    for j in range(curvatures.shape[0]):
        on_row.client_curvature(scores[j, 0], y, rows, x, share, curvatures[j, 0], packed[j])
    add_outer_products(x, curvatures.reshape((packed.shape[0], curvatures.shape[2])), packed)


@kernel
def keep_bias(packed, size):
    """Leave the matrices as they are."""


@kernel
def minimize_over_bias(packed, size):
    """Replace the Hessians by those of the minimum over the last variable, by Schur complements."""
    last = np.empty(size)
    for v in range(packed.shape[0]):
        k = 0
        for a in range(size):
            k += size - a
            last[a] = packed[v, k - 1]
        k, own = 0, last[size - 1]
        for a in range(size):
            for b in range(a, size):
                if a == size - 1 or b == size - 1:
                    packed[v, k] = 0.0
                elif own > 0:
                    packed[v, k] -= last[a] * last[b] / own
                k += 1


class CurvatureKernels:
    """Kernels of `client_quadratic` that depend on the data's format, the loss and the model."""

    columns: Kernel  # dense_columns or sparse_columns
    add_hessian: Kernel  # add_rows_curvature or add_client_curvature
    finish: Kernel  # keep_bias or minimize_over_bias


parts: CurvatureKernels = declared(CurvatureKernels)


@kernel
def client_quadratic(w, x, y, widths, low, high, step, weight, features, places, values, gradient, packed):
    """Add weight times (mean loss, its gradient, its packed Hessian) of the rows low to high, `step` rows at a time.

    values [J], gradient [J, P] and packed [J C (C + 1) / 2, F (F + 1) / 2] are those of one client, initially 0.
    """
    share, pairs = weight / (high - low), packed.shape[0] // w.shape[0]
    for begin in range(low, high, step):
        rows = np.arange(begin, min(begin + step, high))
        batch = model.gather(x, rows, rows[:0], w.shape[0] * widths[-1])
        scores = model.forward(w, batch, widths)
        before = scores.copy()
        losses = np.empty((w.shape[0], rows.shape[0]))
        curvatures = np.empty((w.shape[0], pairs, rows.shape[0]))
        each_row(scores, y, rows, (losses, curvatures), True)
        for j in range(w.shape[0]):
            for i in range(rows.shape[0]):
                values[j] += share * losses[j, i]
                for c in range(scores.shape[1]):
                    scores[j, c, i] *= share
        model.backward(gradient, w, batch, widths, scores)
        own = np.empty((rows.shape[0], features.shape[0]))
        parts.columns(x, rows, features, places, own)
        parts.add_hessian(before, y, rows, own, share, curvatures, packed)
    parts.finish(packed, features.shape[0])


@kernel
def sum_clients(w, x, y, widths, start, step, weights, features, places, values, gradients, packed):
    """Sum the clients' contributions in order, separately for every group of jobs: w [groups, jobs, P]."""
    for group in prange(w.shape[0]):
        own_value = np.empty(values.shape[1])
        own_gradient = np.empty((gradients.shape[1], gradients.shape[2]), gradients.dtype)
        own_packed = np.empty((packed.shape[1], packed.shape[2]))
        for m in range(weights.shape[0]):
            for j in range(own_value.shape[0]):
                own_value[j] = 0
                for k in range(own_gradient.shape[1]):
                    own_gradient[j, k] = 0
            for v in range(own_packed.shape[0]):
                for k in range(own_packed.shape[1]):
                    own_packed[v, k] = 0
            client_quadratic(
                w[group], x, y, widths, start[m], start[m + 1], step, weights[m], features, places,
                own_value, own_gradient, own_packed,
            )  # fmt: skip
            for j in range(own_value.shape[0]):
                values[group, j] += own_value[j]
                for k in range(own_gradient.shape[1]):
                    gradients[group, j, k] += own_gradient[j, k]
            for v in range(own_packed.shape[0]):
                for k in range(own_packed.shape[1]):
                    packed[group, v, k] += own_packed[v, k]


class Columns:
    """Columns of the Hessian: features of the rows that they need, and the position of every entry in the sums.

    The sums are those over the pairs of outputs, C (C + 1) / 2, and of features, F (F + 1) / 2.
    """

    def __init__(self, model: Linear, columns: Array | None = None) -> None:
        size, features, outputs = model.layout.size, model.features, model.outputs
        self.columns = np.arange(size) if columns is None else np.asarray(columns, np.int64)
        is_bias = self.columns >= outputs * features
        self.outputs = np.where(is_bias, self.columns - outputs * features, self.columns // max(features, 1))
        used = np.where(is_bias, features, self.columns % max(features, 1))
        self.features = np.unique(np.append(used, features) if model.site_bias else used)
        self.pairs, self._all_outputs = packed_size(outputs), outputs
        self.places = np.full(features + 1, -1)
        self.places[self.features] = np.arange(len(self.features))
        self.used = used  # feature of every column; that of a bias is the number of features

    @cached_property
    def entries(self) -> Array | None:
        """Position of every packed entry in the sums; None if the sums are the packed Hessian."""
        if self.pairs == 1 and len(self.features) == len(self.columns):
            return None
        a, b = np.triu_indices(len(self.columns))
        pair = packed_index(self.outputs[a], self.outputs[b], self._all_outputs)
        products = packed_size(len(self.features))
        place = self.places[self.used]
        return pair * products + packed_index(place[a], place[b], len(self.features))


def has_curvature(model: Model, loss: Loss) -> bool:
    """Return True if the Hessian of such a model and loss can be computed from rows."""
    return isinstance(model, Linear) and (loss.curvature is not None or loss.client_curvature is not None)


def curvature_kernel(data: ClientData, model: Model, loss: Loss) -> Kernel:
    """Return `client_quadratic` for the data's format, a model and a loss; raise UserError if there is none."""
    if not has_curvature(model, loss):
        what = f"loss {loss.name!r}" if isinstance(model, Linear) else "model"
        raise UserError(f"task: this {what} has no Hessian; choose a method that needs gradients only")
    value = {"value": loss.bound_kernel("value")}
    row_kernels: dict[str, Any] = {}
    if loss.client_curvature is None:
        observe = specialize(observe_curvature, on_row=value | {"curvature": loss.bound_kernel("curvature")})
        add_hessian = add_rows_curvature
    else:
        observe = specialize(observe_loss, on_row=value)
        row_kernels = {"client_curvature": loss.bound_kernel("client_curvature")}
        add_hessian = specialize(add_client_curvature, on_row=row_kernels)
    own = {
        "columns": sparse_columns if isinstance(data.x, SparseRows) else dense_columns,
        "add_hessian": add_hessian,
        "finish": minimize_over_bias if model.site_bias else keep_bias,
    }
    loop = row_loop(data, model, loss, observe)
    return specialize(client_quadratic, model=model_kernels(model), each_row=loop, parts=own)


@cached_by_format
def _sum_of_quadratics(data: ClientData, model: Model, loss: Loss) -> Kernel:
    return specialize(sum_clients, parallel=True, client_quadratic=curvature_kernel(data, model, loss))


def rows_together(data: ClientData, model: Model, loss: Loss) -> int:
    """Return the number of rows per step: all rows of a client if the loss or a site bias couples them."""
    return int(data.sizes.max()) if model.site_bias or loss.client_loss is not None else ROWS_TOGETHER


def quadratic_of(
    data: ClientData, weights: Array, model: Model, loss: Loss, w: Array, columns: Array | None = None
) -> PackedQuadratic:
    """Return the sum over the clients of `data` of weights[m] times (F_m, its gradient, its Hessian) at w [J, P].

    `columns` are sorted indices of weights; the Hessian is then restricted to these.
    """
    run = _sum_of_quadratics(data, model, loss)
    assert isinstance(model, Linear)
    own, size, jobs = Columns(model, columns), model.layout.size, len(w)
    sums = own.pairs * packed_size(len(own.features))
    require_memory(
        f"Hessians of {len(own.columns):,} weights for {jobs:,} models", 8 * jobs * (sums + 2 * len(own.columns) ** 2)
    )
    groups = -(-jobs // JOBS_TOGETHER)
    together = -(-jobs // max(groups, 1))
    models = np.zeros((groups, together, size), data.x.dtype)
    models.reshape(-1, size)[:jobs] = w
    values, gradients = np.zeros((groups, together)), np.zeros((groups, together, size), data.x.dtype)
    packed = np.zeros((groups, together * own.pairs, packed_size(len(own.features))))
    run(
        models, data.x, data.targets, model.widths, data.offsets, rows_together(data, model, loss),
        np.asarray(weights, float), own.features, own.places, values, gradients, packed,
    )  # fmt: skip
    hessian = packed.reshape(groups * together, -1)[:jobs]
    gradient = gradients.reshape(-1, size)[:jobs].astype(float)
    if own.entries is not None:
        hessian = hessian[:, own.entries]
    if model.site_bias:
        hessian[:, _entries_of_bias(own.columns, size)] = 0
    return PackedQuadratic(values.ravel()[:jobs].copy(), gradient, np.ascontiguousarray(hessian))


def _entries_of_bias(columns: Array, size: int) -> Array:
    """Return a mask of the packed entries that belong to the bias of a model with one output."""
    a, b = np.triu_indices(len(columns))
    return (columns[a] == size - 1) | (columns[b] == size - 1)
