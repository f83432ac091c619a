"""The model protocol and linear models.

The order of summation does not depend on the number of jobs, so that a job gives the same bits alone and in a stack.
The loops finish a chunk of columns for all jobs before they start the next, so that the rows stay in cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.kernels.products import (
    CHUNK,
    add_products,
    add_rows,
    chunk_end,
    gather_in_place,
    gather_rows,
    products_of_columns,
    two_norm,
)
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.mirror import on_block
from fco_cli.problem.regularizers.base import BlockInfo
from fco_cli.problem.streams import MODEL, generator

VECTOR_GROUP = 4  # vectors processed at a time


@kernel
def linear_forward(w, batch, widths):
    """Return the scores [J, C, B] of the rows: weights (C, d) times x plus bias (C)."""
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    scores = np.empty((w.shape[0] * outputs, count), w.dtype)
    for v in range(scores.shape[0]):
        for i in range(count):
            scores[v, i] = w[v // outputs, outputs * features + v % outputs]
    add_products(w, outputs, features, batch, 0, features, scores)
    return scores.reshape((w.shape[0], outputs, count))


@kernel
def linear_forward_from_dual(z, t, geometry, batch, widths):
    """Return the scores [J, C, B] of the rows at the primal point grad (h + t psi)*(z), for separable h and psi.

    The primal point is computed for a chunk of columns of a few vectors at a time and used while it is in cache.
    """
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    scores = np.empty((z.shape[0] * outputs, count), z.dtype)
    for v in range(scores.shape[0]):
        for i in range(count):
            scores[v, i] = z[v // outputs, outputs * features + v % outputs]
    piece, low = geometry.table[0, 5], 0
    w = np.empty((VECTOR_GROUP, min(features, 2 * CHUNK)), z.dtype)
    while low < features:
        high = chunk_end(low, features)
        for first in range(0, scores.shape[0], VECTOR_GROUP):
            last = min(first + VECTOR_GROUP, scores.shape[0])
            for v in range(first, last):
                j, start = v // outputs, v % outputs * features
                block = BlockInfo(piece, 1, high - low, geometry.per_weight[start + low : start + high])
                dual, out = z[j, start + low : start + high], w[v - first, : high - low]
                on_block.primal(dual, t[j], geometry.psi[j], geometry.h[0], block, out)
            products_of_columns(w, 1, w.shape[1], 0, batch, low, high - low, scores[first:last])
        low = high
    return scores.reshape((z.shape[0], outputs, count))


@kernel
def linear_backward(gradient, w, batch, widths, slopes):
    """Add the sum over rows of slope times derivative of the score to `gradient` [J, P]; w is not used."""
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    for j in range(gradient.shape[0]):
        for c in range(outputs):
            for i in range(count):
                gradient[j, outputs * features + c] += slopes[j, c, i]
    add_rows(gradient, outputs, features, batch, slopes.reshape((gradient.shape[0] * outputs, count)))


@kernel
def sparse_forward(w, batch, widths):
    """Return the scores [J, C, B] of sparse rows."""
    x, rows, features, outputs = batch.x, batch.rows, widths[0], widths[-1]
    scores = np.empty((w.shape[0], outputs, rows.shape[0]), w.dtype)
    for j in range(w.shape[0]):
        for c in range(outputs):
            weights = w[j, c * features : (c + 1) * features]
            for i in range(rows.shape[0]):
                total = w[j, outputs * features + c]
                for e in range(x.starts[rows[i]], x.starts[rows[i] + 1]):
                    total += x.values[e] * weights[x.columns[e]]
                scores[j, c, i] = total
    return scores


@kernel
def sparse_backward(gradient, w, batch, widths, slopes):
    """Add the sum over sparse rows of slope times derivative of the score to `gradient` [J, P]."""
    x, rows, features, outputs = batch.x, batch.rows, widths[0], widths[-1]
    for j in range(gradient.shape[0]):
        for c in range(outputs):
            target = gradient[j, c * features : (c + 1) * features]
            for i in range(rows.shape[0]):
                slope = slopes[j, c, i]
                gradient[j, outputs * features + c] += slope
                for e in range(x.starts[rows[i]], x.starts[rows[i] + 1]):
                    target[x.columns[e]] += slope * x.values[e]


@kernel
def linear_row_norm(batch, i, widths):
    """Return the norm of the derivative of one score of row i by its weights and its bias: |(x, 1)|."""
    return math.hypot(1.0, two_norm(batch.x[batch.rows[i], : widths[0]]))


@kernel
def sparse_row_norm(batch, i, widths):
    """Return |(x, 1)| for the sparse row i."""
    row = batch.rows[i]
    return math.hypot(1.0, two_norm(batch.x.values[batch.x.starts[row] : batch.x.starts[row + 1]]))


class Model(Protocol):
    """Interface of models; the kernels loop over jobs. Rows of w [J, P] may be padded (kernels/aligned.py)."""

    gather: ClassVar[Kernel]  # gather(x, rows, coming, vectors) -> batch; `vectors` vectors read its rows
    forward: ClassVar[Kernel]  # forward(w, batch, widths) -> scores [J, C, B]
    # forward_from_dual(z, t, geometry, batch, widths) -> scores at the primal point of z, computed in chunks of columns
    # for separable h and psi; None: the whole primal point is computed before `forward`
    forward_from_dual: ClassVar[Kernel | None]
    backward: ClassVar[Kernel]  # backward(gradient, w, batch, widths, slopes [J, C, B]): adds to gradient [J, P]
    # row_norm(batch, i, widths) -> norm of a score's derivative on row i, if it does not depend on w and its product
    # with the norm of the slopes is that of the row's gradient; None: unknown
    row_norm: ClassVar[Kernel | None]
    convex: ClassVar[bool]  # True if a convex loss of the scores is convex in w

    @property
    def site_bias(self) -> bool:
        """True if each client has its own optimal bias (losses/site_bias.py)."""
        ...

    @property
    def widths(self) -> Array:
        """Widths of the layers, from the features to the outputs."""
        ...

    @property
    def layout(self) -> Layout: ...

    def initial(self) -> Array:
        """Return the initial parameters w_0 [P]."""
        ...


def glorot_uniform(random: np.random.Generator, inputs: int, outputs: int) -> Array:
    """Return the initial weights of a layer, flat (Glorot and Bengio, 2010)."""
    limit = np.sqrt(6 / (inputs + outputs))
    return random.uniform(-limit, limit, inputs * outputs)


@dataclass(frozen=True)
class Linear:
    """Linear model: score = weights . x + bias, for each output."""

    features: int
    outputs: int = 1
    weights_shape: tuple[int, ...] | None = None  # shape of the weights for the regularizer, e.g. (32, 32)
    seed: int | None = None  # seed of Glorot-uniform initial weights; None: zeros
    site_bias: bool = False  # if True, the bias of the model itself stays 0

    gather: ClassVar[Kernel] = gather_rows
    forward: ClassVar[Kernel] = linear_forward
    forward_from_dual: ClassVar[Kernel | None] = linear_forward_from_dual
    backward: ClassVar[Kernel] = linear_backward
    row_norm: ClassVar[Kernel | None] = linear_row_norm
    convex: ClassVar[bool] = True

    @cached_property
    def widths(self) -> Array:
        return np.array([self.features, self.outputs])

    @property
    def layout(self) -> Layout:
        shape = self.weights_shape or ((self.features,) if self.outputs == 1 else (self.outputs, self.features))
        return Layout((Block("weights", shape), Block("bias", (self.outputs,), regularized=False)))

    def initial(self) -> Array:
        """Return the initial parameters (docs/paper.md, "Experiments"); the bias is 0."""
        w = np.zeros(self.layout.size)
        if self.seed is not None:
            random = generator(self.seed, MODEL)
            w[self.layout.slices["weights"]] = glorot_uniform(random, self.features, self.outputs)
        return w


@dataclass(frozen=True)
class SparseLinear(Linear):
    """Linear model of sparse rows."""

    gather: ClassVar[Kernel] = gather_in_place
    forward: ClassVar[Kernel] = sparse_forward
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = sparse_backward
    row_norm: ClassVar[Kernel | None] = sparse_row_norm
