"""A penalty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, positive


@dataclass(kw_only=True)
class SmoothL1(Regularizer):
    """strength * sum_i h(w_i), where h(w) is w^2 / (2 width) up to |w| = width and |w| - width / 2 above."""

    strength: float
    width: float = 0.1
    name: str = "smooth_l1"
    separable = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        positive("width", self.width)

    @staticmethod
    @kernel
    def value(w, psi, block):
        total = 0.0
        for i in range(w.shape[0]):
            size = abs(w[i])
            total += size - psi.width / 2 if size > psi.width else size * size / (2 * psi.width)
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        shrinkage = t * psi.strength
        for i in range(z.shape[0]):
            if abs(z[i]) > psi.width + shrinkage:
                out[i] = z[i] - shrinkage * np.sign(z[i])
            else:
                out[i] = z[i] / (1 + shrinkage / psi.width)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * min(max(w[i] / psi.width, -1.0), 1.0)
