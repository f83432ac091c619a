"""Regularizers that order the weights: monotone sequences and SLOPE, both by pooling adjacent violators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Constraint, Regularizer, non_negative


@kernel
def nearest_increasing(z):
    """The projection of z on w_1 <= w_2 <= ..., in linear time.

    Neighbours that fall are pooled into their mean, and the pool with the one before it as long as that falls too.
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
    nearest, i = np.empty(z.shape[0]), 0
    for pool in range(pools):
        for _ in range(counts[pool]):
            nearest[i] = means[pool]
            i += 1
    return nearest


@kernel
def ramp_weight(psi, rank, size):
    """The weight of the entry with the given rank, 0 for the largest: from strength * (1 + ramp) down to strength."""
    return psi.strength * (1.0 + psi.ramp * (size - 1 - rank) / max(size - 1, 1))


@kernel
def by_magnitude(w):
    """Indices from the largest |w_i| to the smallest; ties in their order."""
    magnitude = np.empty(w.shape[0])
    for i in range(w.shape[0]):
        magnitude[i] = -abs(w[i])
    return np.argsort(magnitude, kind="mergesort")


@dataclass(kw_only=True)
class Monotone(Constraint):
    """w_1 <= w_2 <= ... <= w_n."""

    name: str = "monotone"

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        copy(nearest_increasing(z), out)


@dataclass(kw_only=True)
class Slope(Regularizer):
    """psi(w) = sum_i weight_i |w|_(i), the larger the magnitude the larger its weight (SLOPE, OWL).

    The weights fall linearly, as in OSCAR: from strength * (1 + ramp) for the largest entry to strength for the
    smallest. Equal magnitudes of correlated features are favoured.
    """

    strength: float
    ramp: float
    name: str = "slope"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("ramp", self.ramp)

    @staticmethod
    @kernel
    def value(w, psi, block):
        order, total = by_magnitude(w), 0.0
        for rank in range(w.shape[0]):
            total += ramp_weight(psi, rank, w.shape[0]) * abs(w[order[rank]])
        return total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Sorted magnitudes less their weights, made monotone again and cut at 0."""
        order, size = by_magnitude(z), z.shape[0]
        rising = np.empty(size)
        for rank in range(size):
            rising[size - 1 - rank] = abs(z[order[rank]]) - t * ramp_weight(psi, rank, size)
        rising = nearest_increasing(rising)
        for rank in range(size):
            magnitude = rising[size - 1 - rank]
            out[order[rank]] = np.sign(z[order[rank]]) * (0.0 if magnitude < 0 else magnitude)  # NaN stays NaN

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        order = by_magnitude(w)
        for rank in range(w.shape[0]):
            out[order[rank]] = ramp_weight(psi, rank, w.shape[0]) * np.sign(w[order[rank]])
