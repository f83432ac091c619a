"""Curvature of one client's rows, as operations of algorithms (algorithms/ops.py).

Symmetric matrices are sent as triangles [slots, J, P]: packed (curvature.py) and padded to whole vectors of P numbers.
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.problem.curvature import ROWS_TOGETHER, client_quadratic, curvature_kernel, has_curvature, observe_loss
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import each_row, model_kernels, row_loop
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Model

model: Model = declared(Model)


@kernel
def place_of(a, features, outputs):
    """Return the output and the feature of weight a of a linear model; the feature of a bias is `features`."""
    if a < outputs * features:
        return a // features, a % features
    return a - outputs * features, features


@kernel
def index_in_triangle(a, b, size):
    """Return the index of the entry (a, b) of a packed symmetric matrix."""
    low, high = min(a, b), max(a, b)
    return low * size - low * (low - 1) // 2 + high - low


@kernel
def curvature(value, gradient, triangle, query, batches):
    """Assign the mean loss, its gradient and its Hessian on all rows of a client; triangle [slots, J, P]."""
    jobs, features, outputs = query.shape[0], batches.widths[0], batches.widths[-1]
    chosen, pairs = np.arange(features + 1), outputs * (outputs + 1) // 2
    sums = np.zeros((jobs * pairs, (features + 1) * (features + 2) // 2))
    one_client(query, chosen, batches, value, gradient, sums)
    size, k = outputs * (features + 1), 0
    for a in range(size):
        c, f = place_of(a, features, outputs)
        for b in range(a, size):
            d, g = place_of(b, features, outputs)
            pair, entry = index_in_triangle(c, d, outputs), index_in_triangle(f, g, features + 1)
            for j in range(jobs):
                triangle[k // size, j, k % size] = sums[j * pairs + pair, entry]
            k += 1
    pad_triangle(triangle, k)


@kernel
def curvature_of_columns(value, gradient, triangle, query, columns, batches):
    """Assign like `curvature`, with the Hessian of as many columns as the triangle has, for one output."""
    size, count = query.shape[1], columns_in(triangle.shape[0], query.shape[1])
    chosen, entries = np.empty(count, np.int64), count * (count + 1) // 2
    for j in range(query.shape[0]):
        for f in range(count):
            chosen[f] = int(columns[j, f])
        sums, own = np.zeros((1, entries)), query[j].copy().reshape((1, size))
        slopes, loss = np.zeros((1, size), gradient.dtype), np.zeros(1, value.dtype)
        one_client(own, chosen, batches, loss, slopes, sums)
        value[j] = loss[0]
        for k in range(size):
            gradient[j, k] = slopes[0, k]
        for k in range(entries):
            triangle[k // size, j, k % size] = sums[0, k]
    pad_triangle(triangle, entries)


@kernel
def columns_in(slots, size):
    """Return the number of columns of the largest triangle, of at most `size` columns, in `slots` vectors."""
    count = 0
    while count < size and (count + 1) * (count + 2) // 2 <= slots * size:
        count += 1
    return count


@kernel
def pad_triangle(triangle, entries):
    """Set the entries after the last one of a triangle to 0."""
    size = triangle.shape[2]
    for k in range(entries, triangle.shape[0] * size):
        for j in range(triangle.shape[1]):
            triangle[k // size, j, k % size] = 0


@kernel
def one_client(query, chosen, batches, value, gradient, sums):
    """Assign the mean loss and its gradient, and add the packed Hessian of the features `chosen` to `sums`."""
    rows, features = batches.y.shape[0], batches.widths[0]
    places = np.full(features + 1, -1)
    for f in range(chosen.shape[0]):
        places[chosen[f]] = f
    own, slopes = np.zeros(query.shape[0]), np.zeros(query.shape, query.dtype)
    step = rows_at_once(rows)
    client_quadratic(query, batches.x, batches.y, batches.widths, 0, rows, step, 1.0, chosen, places, own, slopes, sums)
    for j in range(query.shape[0]):
        value[j] = own[j]
        for k in range(query.shape[1]):
            gradient[j, k] = slopes[j, k]


@kernel
def some_rows(rows):
    """Return the number of rows per step of a loss that is a sum over rows."""
    return ROWS_TOGETHER


@kernel
def all_rows(rows):
    """Return the number of rows per step of a loss that couples the rows of a client."""
    return rows


rows_at_once = some_rows  # or all_rows, bound by `specialize`


@kernel
def mean_loss(value, w, fraction, step, batches):
    """Assign the mean loss over all rows of a client at w + fraction * step."""
    rows, query = np.arange(batches.y.shape[0]), np.empty(w.shape, w.dtype)
    for j in range(w.shape[0]):
        for k in range(w.shape[1]):
            query[j, k] = w[j, k] + fraction * step[j, k]
    batch = model.gather(batches.x, rows, rows[:0], w.shape[0] * batches.widths[-1])
    scores, losses = model.forward(query, batch, batches.widths), np.empty((w.shape[0], rows.shape[0]))
    each_row(scores, batches.y, rows, (losses,), False)
    for j in range(w.shape[0]):
        total = 0.0
        for i in range(rows.shape[0]):
            total += losses[j, i]
        value[j] = total / rows.shape[0]


def operations(data: ClientData, model: Model, loss: Loss) -> dict[str, Kernel]:
    """Return the kernels of the operations on curvature (algorithms/ops.py); none if there is no Hessian."""
    if not has_curvature(model, loss):
        return {}
    couples_rows = model.site_bias or loss.client_loss is not None
    rows = all_rows if couples_rows else some_rows
    client = specialize(one_client, client_quadratic=curvature_kernel(data, model, loss), rows_at_once=rows)
    observe = specialize(observe_loss, on_row={"value": loss.bound_kernel("value")})
    loop = row_loop(data, model, loss, observe)
    return {
        "curvature": specialize(curvature, one_client=client),
        "curvature_of_columns": specialize(curvature_of_columns, one_client=client),
        "mean_loss": specialize(mean_loss, model=model_kernels(model), each_row=loop),
    }
