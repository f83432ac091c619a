"""Constraints with flat sides: a box, the linf ball, the positive orthant, the simplex."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.regularizers.base import Ball, Constraint, positive

FAR = 1e6  # times the total: the digits of such a threshold no longer suffice for the sum to be right


@kernel
def clip(z, lower, upper, out):
    for i in range(z.shape[0]):
        inside = lower if z[i] < lower else z[i]
        out[i] = (upper if z[i] > upper else inside) + 0 * z[i]


@kernel
def corner(g, lower, upper, out):
    """The corner of the box that is farthest along -g."""
    for i in range(g.shape[0]):
        side = upper if g[i] < 0 else (lower + upper) / 2
        out[i] = (lower if g[i] > 0 else side) + 0 * g[i]


@kernel
def simplex_threshold(z, total):
    """The theta with sum_i max(z_i - theta, 0) = total: entries that fall below it leave, never to return."""
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
def cut_at(z, threshold, out):
    """out = max(z - threshold, 0)."""
    for i in range(z.shape[0]):
        out[i] = (0.0 if z[i] <= threshold else z[i] - threshold) + 0 * z[i]


@dataclass(kw_only=True)
class Box(Constraint):
    """lower <= w_i <= upper."""

    lower: float
    upper: float
    name: str = "box"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        finite = np.isfinite(self.lower) and np.isfinite(self.upper)
        require(finite and self.lower < self.upper, "regularizer.upper", self.upper, f"above lower, {self.lower}")

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, psi.lower, psi.upper, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        corner(g, psi.lower, psi.upper, out)


@dataclass(kw_only=True)
class LinfBall(Ball):
    """|w_i| <= radius."""

    name: str = "linf_ball"
    separable: ClassVar[bool] = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, -psi.radius, psi.radius, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        corner(g, -psi.radius, psi.radius, out)


@dataclass(kw_only=True)
class NonNegative(Constraint):
    """w_i >= 0."""

    name: str = "non_negative"
    separable: ClassVar[bool] = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, 0.0, np.inf, out)


@dataclass(kw_only=True)
class Simplex(Constraint):
    """w_i >= 0 and sum_i w_i = total."""

    total: float
    name: str = "simplex"

    def __post_init__(self) -> None:
        positive("total", self.total)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """max(z - theta, 0), where theta makes the sum right."""
        threshold = simplex_threshold(z, psi.total)
        if abs(threshold) <= FAR * psi.total:
            cut_at(z, threshold, out)
            return
        top = z[0]
        for i in range(z.shape[0]):
            top = max(top, z[i])
        below = np.empty_like(z)  # z - top, which has the same projection
        for i in range(z.shape[0]):
            below[i] = z[i] - top
        cut_at(below, simplex_threshold(below, psi.total), out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """All of the total at the smallest g_i."""
        least = 0
        for i in range(g.shape[0]):
            out[i] = 0 * g[i]
            if g[i] < g[least]:
                least = i
        out[least] += psi.total
