"""Polyhedral constraints: box, linf ball, non-negative orthant, simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.regularizers.base import Ball, Constraint, positive

MAX_RELATIVE_THRESHOLD = 1e6  # relative to the total; beyond it the sum of the projection loses too many digits


@kernel
def clip(z, lower, upper, out):
    """Write z clipped to [lower, upper] to out; a non-finite entry becomes NaN."""
    for i in range(z.shape[0]):
        inside = lower if z[i] < lower else z[i]
        out[i] = (upper if z[i] > upper else inside) + 0 * z[i]


@kernel
def minimizing_corner(g, lower, upper, out):
    """Write the corner of the box that minimizes <g, w> to out; the midpoint where g_i = 0."""
    for i in range(g.shape[0]):
        side = upper if g[i] < 0 else (lower + upper) / 2
        out[i] = (lower if g[i] > 0 else side) + 0 * g[i]


@kernel
def simplex_threshold(z, total):
    """Return theta with sum_i max(z_i - theta, 0) = total, by Michelot's method.

    The threshold only increases, so the set of entries above it only shrinks.
    """
    threshold, count = -np.inf, -1
    while True:
        above, larger = 0, 0.0
        for i in range(z.shape[0]):
            if z[i] > threshold:
                larger += z[i]
                above += 1
        if above == count or above == 0:
            return threshold
        count = above
        threshold = (larger - total) / count


@kernel
def positive_part_above(z, threshold, out):
    """Write max(z - threshold, 0) to out; a non-finite entry becomes NaN."""
    for i in range(z.shape[0]):
        out[i] = (0.0 if z[i] <= threshold else z[i] - threshold) + 0 * z[i]


@dataclass(kw_only=True)
class Box(Constraint):
    """Box: lower <= w_i <= upper."""

    lower: float
    upper: float
    name: str = "box"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        finite = np.isfinite(self.lower) and np.isfinite(self.upper)
        is_valid = finite and self.lower < self.upper
        require(is_valid, "regularizer.upper", self.upper, f"a finite number above lower, {self.lower}")

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, psi.lower, psi.upper, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        minimizing_corner(g, psi.lower, psi.upper, out)


@dataclass(kw_only=True)
class LinfBall(Ball):
    """The linf ball: |w_i| <= radius."""

    name: str = "linf_ball"
    separable: ClassVar[bool] = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, -psi.radius, psi.radius, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        minimizing_corner(g, -psi.radius, psi.radius, out)


@dataclass(kw_only=True)
class NonNegative(Constraint):
    """Non-negative orthant: w_i >= 0."""

    name: str = "non_negative"
    separable: ClassVar[bool] = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, 0.0, np.inf, out)


@dataclass(kw_only=True)
class Simplex(Constraint):
    """Simplex: w_i >= 0 and sum_i w_i = total."""

    total: float
    name: str = "simplex"

    def __post_init__(self) -> None:
        positive("total", self.total)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Write max(z - theta, 0) to out, with the theta for which the sum is the total."""
        threshold = simplex_threshold(z, psi.total)
        if abs(threshold) <= MAX_RELATIVE_THRESHOLD * psi.total:
            positive_part_above(z, threshold, out)
            return
        top = z[0]
        for i in range(z.shape[0]):
            top = max(top, z[i])
        shifted = np.empty_like(z)  # z - top has the same projection
        for i in range(z.shape[0]):
            shifted[i] = z[i] - top
        positive_part_above(shifted, simplex_threshold(shifted, psi.total), out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write the minimizing vertex to out: the total at the smallest g_i, 0 at the other entries."""
        least = 0
        for i in range(g.shape[0]):
            out[i] = 0 * g[i]
            if g[i] < g[least]:
                least = i
        out[least] += psi.total
