"""Models: how parameters and features give scores, and how derivatives by the scores flow back.

Every sum below runs in an order that does not depend on the number of jobs, so that a job gives the same bits
alone and in a stack. The loops finish a chunk of columns for all jobs before the next: the rows stay in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fco_cli.kernels.aligned import gathered, in_place
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.kernels.products import CHUNK, add_products, add_rows, chunk_end, products_of_columns
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.regularizers.base import OneBlock
from fco_cli.problem.streams import MODEL, generator

FEW = 4  # vectors


@kernel
def linear_forward(w, batch, widths):
    """Scores [J, C, B] of the rows: kernel (C, d) times x plus bias (C)."""
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    scores = np.empty((w.shape[0] * outputs, count), w.dtype)
    for v in range(scores.shape[0]):
        for i in range(count):
            scores[v, i] = w[v // outputs, outputs * features + v % outputs]
    add_products(w, outputs, features, batch, 0, features, scores)
    return scores.reshape((w.shape[0], outputs, count))


def primal(z, t, psi, h, block, out):  # bound by `specialize`
    raise NotImplementedError


@kernel
def linear_forward_from_dual(z, t, geometry, batch, widths):
    """Scores [J, C, B] of the rows at grad (h + t psi)*(z), where h and psi take every weight by itself.

    Some columns of a few vectors are made at a time, and used before they leave the cache.
    """
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    scores = np.empty((z.shape[0] * outputs, count), z.dtype)
    for v in range(scores.shape[0]):
        for i in range(count):
            scores[v, i] = z[v // outputs, outputs * features + v % outputs]
    piece, low = geometry.table[0, 5], 0
    w = np.empty((FEW, min(features, 2 * CHUNK)), z.dtype)
    while low < features:
        high = chunk_end(low, features)
        for first in range(0, scores.shape[0], FEW):
            last = min(first + FEW, scores.shape[0])
            for v in range(first, last):
                j, start = v // outputs, v % outputs * features
                block = OneBlock(piece, 1, high - low, geometry.each[start + low : start + high])
                own, out = z[j, start + low : start + high], w[v - first, : high - low]
                primal(own, t[j], geometry.psi[j], geometry.h[0], block, out)
            products_of_columns(w, 1, w.shape[1], 0, batch, low, high - low, scores[first:last])
        low = high
    return scores.reshape((z.shape[0], outputs, count))


@kernel
def linear_backward(gradient, w, batch, widths, slopes):
    """Add to `gradient` [J, P] the rows' sum of slope times derivative of the score; a linear model ignores w."""
    features, count, outputs = widths[0], batch.rows.shape[0], widths[-1]
    for j in range(gradient.shape[0]):
        for c in range(outputs):
            for i in range(count):
                gradient[j, outputs * features + c] += slopes[j, c, i]
    add_rows(gradient, outputs, features, batch, slopes.reshape((gradient.shape[0] * outputs, count)))


@kernel
def sparse_forward(w, batch, widths):
    """The same from the entries that are stored."""
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
    """The same, to the weights of the stored entries alone."""
    x, rows, features, outputs = batch.x, batch.rows, widths[0], widths[-1]
    for j in range(gradient.shape[0]):
        for c in range(outputs):
            target = gradient[j, c * features : (c + 1) * features]
            for i in range(rows.shape[0]):
                slope = slopes[j, c, i]
                gradient[j, outputs * features + c] += slope
                for e in range(x.starts[rows[i]], x.starts[rows[i] + 1]):
                    target[x.columns[e]] += slope * x.values[e]


class Model(Protocol):
    """What a problem asks of a model; its kernels loop over jobs. Rows of w [J, P] may be longer than P (near.py)."""

    gather: ClassVar[Kernel]  # gather(x, rows, coming, vectors) -> batch: rows to be read by so many vectors
    forward: ClassVar[Kernel]  # forward(w, batch, widths) -> scores [J, C, B]
    forward_from_dual: ClassVar[Kernel | None]  # forward_from_dual(z, t, geometry, batch, widths) -> the same at the
    # primal of z, made by columns, from `primal` for weights by themselves; none: all of it is made before
    backward: ClassVar[Kernel]  # backward(gradient, w, batch, widths, slopes [J, C, B]): adds to gradient [J, P]
    convex: ClassVar[bool]  # whether a convex loss of its scores is convex in w

    @property
    def site_bias(self) -> bool:
        """Whether every client has a bias of its own, which it keeps: always the best for its rows (descent.py)."""
        ...

    @property
    def widths(self) -> Array:
        """Of the layers, from the features to the outputs: what the kernels must know of the model's shape."""
        ...

    @property
    def layout(self) -> Layout: ...

    def initial(self) -> Array:
        """w_0 [P]."""
        ...


def glorot_uniform(random: np.random.Generator, inputs: int, outputs: int) -> Array:
    """The weights of a layer at the start, flat (Glorot and Bengio, 2010)."""
    limit = np.sqrt(6 / (inputs + outputs))
    return random.uniform(-limit, limit, inputs * outputs)


@dataclass(frozen=True)
class Linear:
    """score = weights . x + bias, with a score per output."""

    features: int
    outputs: int = 1
    weights_shape: tuple[int, ...] | None = None  # how the regularizer sees the weights, e.g. (32, 32)
    seed: int | None = None  # of a Glorot-uniform start; none: zeros
    site_bias: bool = False  # that of the model then stays 0

    gather: ClassVar[Kernel] = gathered
    forward: ClassVar[Kernel] = linear_forward
    forward_from_dual: ClassVar[Kernel | None] = linear_forward_from_dual
    backward: ClassVar[Kernel] = linear_backward
    convex: ClassVar[bool] = True

    @property
    def widths(self) -> Array:
        return np.array([self.features, self.outputs])

    @property
    def layout(self) -> Layout:
        shape = self.weights_shape or ((self.features,) if self.outputs == 1 else (self.outputs, self.features))
        return Layout((Block("weights", shape), Block("bias", (self.outputs,), regularized=False)))

    def initial(self) -> Array:
        """w_0 (docs/method.md, "Experiments"); the bias is 0 in any case."""
        w = np.zeros(self.layout.size)
        if self.seed is not None:
            random = generator(self.seed, MODEL)
            w[self.layout.slices["weights"]] = glorot_uniform(random, self.features, self.outputs)
        return w


@dataclass(frozen=True)
class SparseLinear(Linear):
    """The same for rows of which only stored entries are looked at."""

    gather: ClassVar[Kernel] = in_place
    forward: ClassVar[Kernel] = sparse_forward
    forward_from_dual: ClassVar[Kernel | None] = None
    backward: ClassVar[Kernel] = sparse_backward
