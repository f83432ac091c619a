"""Cardinality penalty and constraint, both non-convex: the prox is a global minimizer, the theorems do not apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.regularizers.base import Constraint, Regularizer, non_negative
from fco_cli.problem.regularizers.ordered import order_by_magnitude


@dataclass(kw_only=True)
class L0(Regularizer):
    """The l0 penalty: psi(w) = strength * (number of non-zero weights)."""

    strength: float
    name: str = "l0"
    convex: ClassVar[bool] = False
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        total = 0
        for i in range(w.shape[0]):
            total += w[i] != 0
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Apply hard thresholding: keep z_i where z_i^2 / 2 exceeds t * strength."""
        threshold = np.sqrt(2 * t * psi.strength)
        for i in range(z.shape[0]):
            out[i] = 0.0 if abs(z[i]) <= threshold else z[i]


@dataclass(kw_only=True)
class L0Ball(Constraint):
    """The l0 ball: at most `nonzeros` weights are non-zero; the projection keeps those largest in magnitude."""

    nonzeros: int
    name: str = "l0_ball"
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(self.nonzeros >= 1, "regularizer.nonzeros", self.nonzeros, "a whole number >= 1")

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        order = order_by_magnitude(z)
        for rank in range(z.shape[0]):
            entry = z[order[rank]]
            out[order[rank]] = (entry if rank < psi.nonzeros else 0.0) + 0 * entry
