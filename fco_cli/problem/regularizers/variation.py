"""Total variation of a sequence and the fused lasso, by the taut string algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, non_negative, scale
from fco_cli.problem.regularizers.penalties import soft_threshold


@kernel
def total_variation(w):
    """Return sum_i |w_{i+1} - w_i|."""
    total = 0.0
    for i in range(w.shape[0] - 1):
        total += abs(w[i + 1] - w[i])
    return total


@kernel
def taut_string(z, width, out):
    """Write argmin_w width * sum_i |w_{i+1} - w_i| + |w - z|^2 / 2 to out, by the taut string algorithm.

    The result is the slopes of the shortest string through the tube of half-width `width` around the cumulative sums
    of z, with fixed ends. After a knot, the slope of the string is at least `min_slope`, to stay above the floor of
    the tube, and at most `max_slope`, to stay below its ceiling. When no slope satisfies both, the next knot is at the
    point that set the violated bound. Time is linear except on adversarial sequences.
    """
    size = z.shape[0]
    sums = np.zeros(size + 1)
    for i in range(size):
        sums[i + 1] = sums[i] + z[i]
    knot, height = 0, 0.0
    while knot < size:
        min_slope, max_slope = -np.inf, np.inf
        floor, ceiling, k = knot, knot, knot
        end, end_height = size, sums[size]
        while k < size:
            k += 1
            slack = width if k < size else 0.0
            low = (sums[k] - slack - height) / (k - knot)
            high = (sums[k] + slack - height) / (k - knot)
            if low > max_slope:  # the floor exceeds an earlier ceiling: knot at that ceiling
                end, end_height = ceiling, sums[ceiling] + width
                break
            if high < min_slope:  # the ceiling is below an earlier floor: knot at that floor
                end, end_height = floor, sums[floor] - width
                break
            if low >= min_slope:
                min_slope, floor = low, k
            if high <= max_slope:
                max_slope, ceiling = high, k
        slope = (end_height - height) / (end - knot)
        for i in range(knot, end):
            out[i] = slope
        knot, height = end, end_height


@kernel
def add_variation_subgradient(w, strength, out):
    """Add a subgradient of strength * sum_i |w_{i+1} - w_i| to out."""
    for i in range(w.shape[0] - 1):
        change = strength * np.sign(w[i + 1] - w[i])
        out[i + 1] += change
        out[i] -= change


@dataclass(kw_only=True)
class TotalVariation(Regularizer):
    """Total variation: psi(w) = strength * sum_i |w_{i+1} - w_i|; favors piecewise constant sequences."""

    strength: float
    name: str = "total_variation"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * total_variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        if t * psi.strength > 0:
            taut_string(z, t * psi.strength, out)
        else:
            copy(z, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        scale(w, w.dtype.type(0), out)
        add_variation_subgradient(w, psi.strength, out)


@dataclass(kw_only=True)
class FusedLasso(Regularizer):
    """Fused lasso: psi(w) = strength * |w|_1 + variation_strength * sum_i |w_{i+1} - w_i|."""

    strength: float
    variation_strength: float
    name: str = "fused_lasso"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("variation_strength", self.variation_strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * absolute_sum(w) + psi.variation_strength * total_variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Apply the prox of the total variation, then soft thresholding (Friedman et al., 2007)."""
        if t * psi.variation_strength > 0:
            taut_string(z, t * psi.variation_strength, out)
        else:
            copy(z, out)
        soft_threshold(out, z.dtype.type(t * psi.strength), z.dtype.type(1), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * np.sign(w[i])
        add_variation_subgradient(w, psi.variation_strength, out)
