"""Total variation of a sequence and the fused lasso, by the taut string."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, non_negative, scale
from fco_cli.problem.regularizers.penalties import soft_threshold


@kernel
def variation(w):
    total = 0.0
    for i in range(w.shape[0] - 1):
        total += abs(w[i + 1] - w[i])
    return total


@kernel
def pull_string(z, width, out):
    """out = argmin_w width * sum_i |w_{i+1} - w_i| + |w - z|^2 / 2.

    The slopes of the shortest string through the tube of half-width `width` around the running sums of z, fixed at
    both ends. From a knot, the string may leave with any slope between `steepest` (to stay above the tube's floor)
    and `flattest` (to stay below its ceiling); when no such slope is left it bends at the point that ruled last.
    Linear time on all but adversarial sequences.
    """
    size = z.shape[0]
    sums = np.zeros(size + 1)
    for i in range(size):
        sums[i + 1] = sums[i] + z[i]
    knot, height = 0, 0.0
    while knot < size:
        steepest, flattest = -np.inf, np.inf
        floor, ceiling, k = knot, knot, knot
        end, end_height = size, sums[size]
        while k < size:
            k += 1
            slack = width if k < size else 0.0
            low = (sums[k] - slack - height) / (k - knot)
            high = (sums[k] + slack - height) / (k - knot)
            if low > flattest:  # the floor rises over the ceiling met before: bend at the ceiling
                end, end_height = ceiling, sums[ceiling] + width
                break
            if high < steepest:
                end, end_height = floor, sums[floor] - width
                break
            if low >= steepest:
                steepest, floor = low, k
            if high <= flattest:
                flattest, ceiling = high, k
        slope = (end_height - height) / (end - knot)
        for i in range(knot, end):
            out[i] = slope
        knot, height = end, end_height


@kernel
def add_variation_subgradient(w, strength, out):
    for i in range(w.shape[0] - 1):
        pull = strength * np.sign(w[i + 1] - w[i])
        out[i + 1] += pull
        out[i] -= pull


@dataclass(kw_only=True)
class TotalVariation(Regularizer):
    """psi(w) = strength * sum_i |w_{i+1} - w_i|: piecewise constant sequences."""

    strength: float
    name: str = "total_variation"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        if t * psi.strength > 0:
            pull_string(z, t * psi.strength, out)
        else:
            copy(z, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        scale(w, w.dtype.type(0), out)
        add_variation_subgradient(w, psi.strength, out)


@dataclass(kw_only=True)
class FusedLasso(Regularizer):
    """psi(w) = strength * |w|_1 + variation_strength * sum_i |w_{i+1} - w_i|."""

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
        return psi.strength * absolute_sum(w) + psi.variation_strength * variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """The soft threshold of the total variation's prox (Friedman et al., 2007)."""
        if t * psi.variation_strength > 0:
            pull_string(z, t * psi.variation_strength, out)
        else:
            copy(z, out)
        soft_threshold(out, z.dtype.type(t * psi.strength), z.dtype.type(1), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * np.sign(w[i])
        add_variation_subgradient(w, psi.variation_strength, out)
