"""Constraints with flat sides: a box, the linf ball, the positive orthant, the simplex."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import kernel
from fco_cli.problem.regularizers.base import Ball, Constraint, positive


@kernel
def clip(z, lower, upper, out):
    for i in range(z.shape[0]):
        inside = lower if z[i] < lower else z[i]  # so that NaN stays NaN
        out[i] = upper if z[i] > upper else inside


@dataclass(kw_only=True)
class Box(Constraint):
    """lower <= w_i <= upper."""

    lower: float
    upper: float
    name: str = "box"

    def __post_init__(self) -> None:
        finite = np.isfinite(self.lower) and np.isfinite(self.upper)
        require(finite and self.lower < self.upper, "regularizer.upper", self.upper, f"above lower, {self.lower}")

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, psi.lower, psi.upper, out)


@dataclass(kw_only=True)
class LinfBall(Ball):
    """|w_i| <= radius."""

    name: str = "linf_ball"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, -psi.radius, psi.radius, out)


@dataclass(kw_only=True)
class NonNegative(Constraint):
    """w_i >= 0."""

    name: str = "non_negative"

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
        """max(z - theta, 0), where theta makes the sum right: entries that fall below it leave, never to return."""
        threshold, count = -np.inf, -1
        while True:
            above, larger = 0, 0.0
            for i in range(z.shape[0]):
                if z[i] > threshold:
                    larger += z[i]
                    above += 1
            if above == count or above == 0:
                break
            count = above
            threshold = (larger - psi.total) / count
        for i in range(z.shape[0]):
            out[i] = 0.0 if z[i] <= threshold else z[i] - threshold
