"""Models: how parameters and features give scores, and how derivatives by the scores flow back.

Every sum below runs in an order that does not depend on the number of jobs, so that a job gives the same bits
alone and in a stack. The loops finish a chunk of columns for all jobs before the next: the rows stay in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fco_cli.problem.compiled import Kernel, kernel, kernel_in_order
from fco_cli.problem.layout import Array, Block, Layout
from fco_cli.problem.streams import MODEL, generator

CHUNK = 1024  # columns


@kernel
def add_products(first, second, x, rows, low, high, of_first, of_second):
    """of_first[i] += first . x[rows[i], low:high], and likewise of the second: a row is loaded once for both."""
    count = rows.shape[0]
    zero = first.dtype.type(0)
    i = 0
    while i + 5 <= count:  # and five rows at a time: one load of the weights serves five sums
        x0 = x[rows[i], low:high]
        x1 = x[rows[i + 1], low:high]
        x2 = x[rows[i + 2], low:high]
        x3 = x[rows[i + 3], low:high]
        x4 = x[rows[i + 4], low:high]
        s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
        r0, r1, r2, r3, r4 = zero, zero, zero, zero, zero
        for k in range(high - low):
            s0 += x0[k] * first[k]
            s1 += x1[k] * first[k]
            s2 += x2[k] * first[k]
            s3 += x3[k] * first[k]
            s4 += x4[k] * first[k]
            r0 += x0[k] * second[k]
            r1 += x1[k] * second[k]
            r2 += x2[k] * second[k]
            r3 += x3[k] * second[k]
            r4 += x4[k] * second[k]
        of_first[i] += s0
        of_first[i + 1] += s1
        of_first[i + 2] += s2
        of_first[i + 3] += s3
        of_first[i + 4] += s4
        of_second[i] += r0
        of_second[i + 1] += r1
        of_second[i + 2] += r2
        of_second[i + 3] += r3
        of_second[i + 4] += r4
        i += 5
    while i < count:
        x0 = x[rows[i], low:high]
        s0, r0 = zero, zero
        for k in range(high - low):
            s0 += x0[k] * first[k]
            r0 += x0[k] * second[k]
        of_first[i] += s0
        of_second[i] += r0
        i += 1


@kernel_in_order  # so that this and `add_rows_to_both` agree to the last bit: a job's partner depends on its stack
def add_rows(target, x, rows, low, high, slope):
    """target += sum_i slope[i] x[rows[i], low:high]."""
    count = rows.shape[0]
    i = 0
    while i + 5 <= count:
        x0 = x[rows[i], low:high]
        x1 = x[rows[i + 1], low:high]
        x2 = x[rows[i + 2], low:high]
        x3 = x[rows[i + 3], low:high]
        x4 = x[rows[i + 4], low:high]
        a0, a1, a2, a3, a4 = slope[i], slope[i + 1], slope[i + 2], slope[i + 3], slope[i + 4]
        for k in range(high - low):
            target[k] = target[k] + x0[k] * a0 + x1[k] * a1 + x2[k] * a2 + x3[k] * a3 + x4[k] * a4
        i += 5
    while i < count:
        x0 = x[rows[i], low:high]
        a0 = slope[i]
        for k in range(high - low):
            target[k] += x0[k] * a0
        i += 1


@kernel_in_order
def add_rows_to_both(first, second, x, rows, low, high, of_first, of_second):
    """`add_rows` to two targets with slopes of their own: a row is loaded once for both."""
    count = rows.shape[0]
    i = 0
    while i + 5 <= count:
        x0 = x[rows[i], low:high]
        x1 = x[rows[i + 1], low:high]
        x2 = x[rows[i + 2], low:high]
        x3 = x[rows[i + 3], low:high]
        x4 = x[rows[i + 4], low:high]
        a0, a1, a2, a3, a4 = of_first[i], of_first[i + 1], of_first[i + 2], of_first[i + 3], of_first[i + 4]
        b0, b1, b2, b3, b4 = of_second[i], of_second[i + 1], of_second[i + 2], of_second[i + 3], of_second[i + 4]
        for k in range(high - low):
            first[k] = first[k] + x0[k] * a0 + x1[k] * a1 + x2[k] * a2 + x3[k] * a3 + x4[k] * a4
            second[k] = second[k] + x0[k] * b0 + x1[k] * b1 + x2[k] * b2 + x3[k] * b3 + x4[k] * b4
        i += 5
    while i < count:
        x0 = x[rows[i], low:high]
        a0, b0 = of_first[i], of_second[i]
        for k in range(high - low):
            first[k] += x0[k] * a0
            second[k] += x0[k] * b0
        i += 1


@kernel
def linear_forward(w, x, rows, widths):
    """Scores [J, C, B] of the rows: kernel (C, d) times x plus bias (C)."""
    features, count, outputs = x.shape[1], rows.shape[0], widths[-1]
    vectors = w.shape[0] * outputs  # vector v is that of job v // C and output v % C
    scores, spare = np.empty((vectors, count), w.dtype), np.empty(count, w.dtype)
    for v in range(vectors):
        for i in range(count):
            scores[v, i] = w[v // outputs, outputs * features + v % outputs]
    for low in range(0, features, CHUNK):
        high = min(low + CHUNK, features)
        for v in range(0, vectors, 2):
            last = min(v + 1, vectors - 1)
            start, start_last = v % outputs * features, last % outputs * features
            add_products(
                w[v // outputs, start + low : start + high],
                w[last // outputs, start_last + low : start_last + high],
                x, rows, low, high, scores[v], scores[last] if last > v else spare,
            )  # fmt: skip
    return scores.reshape((w.shape[0], outputs, count))


@kernel
def linear_backward(gradient, w, x, rows, widths, slopes):
    """Add to `gradient` [J, P] the rows' sum of slope times derivative of the score; a linear model ignores w."""
    features, count, outputs = x.shape[1], rows.shape[0], widths[-1]
    vectors = gradient.shape[0] * outputs
    for v in range(vectors):
        for i in range(count):
            gradient[v // outputs, outputs * features + v % outputs] += slopes[v // outputs, v % outputs, i]
    for low in range(0, features, CHUNK):
        high = min(low + CHUNK, features)
        for v in range(0, vectors, 2):
            slope, start = slopes[v // outputs, v % outputs], v % outputs * features
            target = gradient[v // outputs, start + low : start + high]
            if v + 1 < vectors:
                other, start = slopes[(v + 1) // outputs, (v + 1) % outputs], (v + 1) % outputs * features
                second = gradient[(v + 1) // outputs, start + low : start + high]
                add_rows_to_both(target, second, x, rows, low, high, slope, other)
            else:
                add_rows(target, x, rows, low, high, slope)


@kernel
def sparse_forward(w, x, rows, widths):
    """The same from the entries that are stored."""
    features, outputs = widths[0], widths[-1]
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
def sparse_backward(gradient, w, x, rows, widths, slopes):
    """The same, to the weights of the stored entries alone."""
    features, outputs = widths[0], widths[-1]
    for j in range(gradient.shape[0]):
        for c in range(outputs):
            target = gradient[j, c * features : (c + 1) * features]
            for i in range(rows.shape[0]):
                slope = slopes[j, c, i]
                gradient[j, outputs * features + c] += slope
                for e in range(x.starts[rows[i]], x.starts[rows[i] + 1]):
                    target[x.columns[e]] += slope * x.values[e]


class Model(Protocol):
    """What a problem asks of a model; its kernels loop over the jobs."""

    forward: ClassVar[Kernel]  # forward(w, x, rows, widths) -> scores [J, C, B]
    backward: ClassVar[Kernel]  # backward(gradient, w, x, rows, widths, slopes [J, C, B]): adds to gradient [J, P]
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

    forward: ClassVar[Kernel] = linear_forward
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

    forward: ClassVar[Kernel] = sparse_forward
    backward: ClassVar[Kernel] = sparse_backward
