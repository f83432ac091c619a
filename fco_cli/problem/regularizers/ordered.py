"""Regularizers that sort the weights: monotone sequences, SLOPE and the number of non-zero weights.

Monotone sequences and SLOPE use the pool adjacent violators algorithm. The cardinality penalty and constraint are not
convex: the prox is a global minimizer, and the theorems do not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Constraint, Regularizer, non_negative


@kernel
def isotonic_projection(z):
    """Return the projection of z onto w_1 <= w_2 <= ..., in linear time.

    Decreasing neighbors are pooled into their mean, and a pool is merged with the previous one while it decreases.
    """
    means, counts = np.empty(z.shape[0]), np.empty(z.shape[0], np.int64)
    pools = 0
    for i in range(z.shape[0]):
        mean, count = float(z[i]), 1
        while pools > 0 and means[pools - 1] > mean:
            pools -= 1
            mean = (mean * count + means[pools] * counts[pools]) / (count + counts[pools])
            count += counts[pools]
        means[pools], counts[pools] = mean, count
        pools += 1
    result, i = np.empty(z.shape[0]), 0
    for pool in range(pools):
        for _ in range(counts[pool]):
            result[i] = means[pool]
            i += 1
    return result


@kernel
def ramp_weight(psi, rank, size):
    """Return the weight of the entry of this rank, from strength * (1 + ramp) at rank 0 (the largest) to strength."""
    return psi.strength * (1.0 + psi.ramp * (size - 1 - rank) / max(size - 1, 1))


@kernel
def order_by_magnitude(w):
    """Return the indices by decreasing |w_i|; the sort is stable."""
    magnitude = np.empty(w.shape[0])
    for i in range(w.shape[0]):
        magnitude[i] = -abs(w[i])
    return np.argsort(magnitude, kind="mergesort")


@dataclass(kw_only=True)
class Monotone(Constraint):
    """Monotone sequences: w_1 <= w_2 <= ... <= w_n."""

    name: str = "monotone"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        copy(isotonic_projection(z), out)


@dataclass(kw_only=True)
class Slope(Regularizer):
    """SLOPE (OWL): psi(w) = sum_i weight_i |w|_(i), with larger weights for larger magnitudes.

    The weights decrease linearly, as in OSCAR, from strength * (1 + ramp) for the largest entry to strength for the
    smallest. The penalty favors equal magnitudes of correlated features.
    """

    strength: float  # factor for the smallest magnitude, at least 0
    ramp: float
    name: str = "slope"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("ramp", self.ramp)

    @staticmethod
    @kernel
    def value(w, psi, block):
        order, total = order_by_magnitude(w), 0.0
        for rank in range(w.shape[0]):
            total += ramp_weight(psi, rank, w.shape[0]) * abs(w[order[rank]])
        return total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Subtract the weights from the sorted magnitudes, project onto monotone sequences and clip at 0."""
        order, size = order_by_magnitude(z), z.shape[0]
        increasing = np.empty(size)
        for rank in range(size):
            increasing[size - 1 - rank] = abs(z[order[rank]]) - t * ramp_weight(psi, rank, size)
        increasing = isotonic_projection(increasing)
        for rank in range(size):
            magnitude = increasing[size - 1 - rank]
            out[order[rank]] = np.sign(z[order[rank]]) * (0.0 if magnitude < 0 else magnitude)  # NaN stays NaN

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        order = order_by_magnitude(w)
        for rank in range(w.shape[0]):
            out[order[rank]] = ramp_weight(psi, rank, w.shape[0]) * np.sign(w[order[rank]])


@dataclass(kw_only=True)
class L0(Regularizer):
    """The l0 penalty: psi(w) = strength * (number of non-zero weights)."""

    strength: float  # price of a non-zero weight, at least 0
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

    nonzeros: int  # largest number of non-zero weights
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
