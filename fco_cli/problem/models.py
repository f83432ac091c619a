"""Models: how parameters and features give scores, and how derivatives by the scores flow back.

Every sum below runs in an order that does not depend on the number of jobs, so that a job gives the same bits
alone and in a stack. The loops finish a chunk of columns for all jobs before the next: the rows stay in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.problem.compiled import Kernel, kernel
from fco_cli.problem.layout import Array, Block, Layout

CHUNK = 512  # columns


@kernel
def linear_forward(w, x, rows, widths):
    """Scores [J, C, B] of the rows: kernel (C, d) times x plus bias (C)."""
    jobs, features, count = w.shape[0], x.shape[1], rows.shape[0]
    outputs = widths[-1]
    scores = np.empty((jobs, outputs, count), w.dtype)
    zero = w.dtype.type(0)
    for j in range(jobs):
        for c in range(outputs):
            for i in range(count):
                scores[j, c, i] = w[j, outputs * features + c]
    for low in range(0, features, CHUNK):
        high = min(low + CHUNK, features)
        for j in range(jobs):
            for c in range(outputs):
                weights = w[j, c * features + low : c * features + high]
                score = scores[j, c]
                i = 0
                while i + 5 <= count:  # five rows at a time: one load of the weights serves five sums
                    x0 = x[rows[i], low:high]
                    x1 = x[rows[i + 1], low:high]
                    x2 = x[rows[i + 2], low:high]
                    x3 = x[rows[i + 3], low:high]
                    x4 = x[rows[i + 4], low:high]
                    s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
                    for k in range(high - low):
                        s0 += x0[k] * weights[k]
                        s1 += x1[k] * weights[k]
                        s2 += x2[k] * weights[k]
                        s3 += x3[k] * weights[k]
                        s4 += x4[k] * weights[k]
                    score[i] += s0
                    score[i + 1] += s1
                    score[i + 2] += s2
                    score[i + 3] += s3
                    score[i + 4] += s4
                    i += 5
                while i < count:
                    x0 = x[rows[i], low:high]
                    s0 = zero
                    for k in range(high - low):
                        s0 += x0[k] * weights[k]
                    score[i] += s0
                    i += 1
    return scores


@kernel
def linear_backward(gradient, w, x, rows, widths, slopes):
    """Add to `gradient` [J, P] the rows' sum of slope times derivative of the score; a linear model ignores w."""
    jobs, features, count = gradient.shape[0], x.shape[1], rows.shape[0]
    outputs = widths[-1]
    for j in range(jobs):
        for c in range(outputs):
            for i in range(count):
                gradient[j, outputs * features + c] += slopes[j, c, i]
    for low in range(0, features, CHUNK):
        high = min(low + CHUNK, features)
        for j in range(jobs):
            for c in range(outputs):
                target = gradient[j, c * features + low : c * features + high]
                slope = slopes[j, c]
                i = 0
                while i + 5 <= count:
                    x0 = x[rows[i], low:high]
                    x1 = x[rows[i + 1], low:high]
                    x2 = x[rows[i + 2], low:high]
                    x3 = x[rows[i + 3], low:high]
                    x4 = x[rows[i + 4], low:high]
                    a0, a1, a2, a3, a4 = slope[i], slope[i + 1], slope[i + 2], slope[i + 3], slope[i + 4]
                    for k in range(high - low):
                        target[k] += x0[k] * a0 + x1[k] * a1 + x2[k] * a2 + x3[k] * a3 + x4[k] * a4
                    i += 5
                while i < count:
                    x0 = x[rows[i], low:high]
                    a0 = slope[i]
                    for k in range(high - low):
                        target[k] += x0[k] * a0
                    i += 1


@dataclass(frozen=True)
class Linear:
    """score = kernel . x + bias, with a score per output."""

    features: int
    outputs: int = 1
    kernel_shape: tuple[int, ...] | None = None  # how the regularizer sees the kernel, e.g. (32, 32)

    forward: ClassVar[Kernel] = linear_forward
    backward: ClassVar[Kernel] = linear_backward
    convex: ClassVar[bool] = True

    @property
    def widths(self) -> Array:
        """Of the layers, from the features to the outputs: what the kernels must know of the model's shape."""
        return np.array([self.features, self.outputs])

    @property
    def layout(self) -> Layout:
        shape = self.kernel_shape or ((self.features,) if self.outputs == 1 else (self.outputs, self.features))
        return Layout((Block("kernel", shape), Block("bias", (self.outputs,), regularised=False)))

    def start(self) -> Array:
        """w_0 = 0 (SPEC section 3)."""
        return np.zeros(self.layout.size)
