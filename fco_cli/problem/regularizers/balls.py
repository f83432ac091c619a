"""Constraints to an l1 or l2 ball: psi is 0 inside and infinite outside, its prox the projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, positive, scale, squared_length
from fco_cli.problem.regularizers.penalties import soft_threshold


@kernel
def l1_ball_threshold(z, radius):
    """The theta >= 0 with sum_i max(|z_i| - theta, 0) = radius, for |z|_1 > radius.

    Newton's method on that piecewise linear, convex function, started below the root: it never overshoots and ends
    exactly, after a few passes, when the set of entries above theta no longer changes (Michelot's method).
    """
    count = z.shape[0]
    theta = (absolute_sum(z) - radius) / count
    while True:
        above, larger = 0, 0.0
        for i in range(z.shape[0]):
            if abs(z[i]) > theta:
                larger += abs(z[i])
                above += 1
        if above == count or above == 0:
            return theta
        count = above
        theta = (larger - radius) / count


@dataclass(kw_only=True)
class L1Ball(Regularizer):
    """|w|_1 <= radius, each regularised block on its own."""

    radius: float
    name: str = "l1_ball"
    constraint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    @staticmethod
    @kernel
    def value(w, p, shape):
        return 0.0

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        if absolute_sum(z) <= p[0]:
            copy(z, out)
        else:
            soft_threshold(z, z.dtype.type(l1_ball_threshold(z, p[0])), z.dtype.type(1), out)


@dataclass(kw_only=True)
class L2Ball(Regularizer):
    """|w|_2 <= radius, each regularised block on its own."""

    radius: float
    name: str = "l2_ball"
    constraint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    @staticmethod
    @kernel
    def value(w, p, shape):
        return 0.0

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        length = np.sqrt(squared_length(z))
        scale(z, z.dtype.type(1 if length <= p[0] else p[0] / length), out)
