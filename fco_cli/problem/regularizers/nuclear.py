"""The nuclear norm and its ball, by a compiled singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.singular import (
    NEGLIGIBLE,
    ROUNDING,
    singular_pairs,
    singular_values,
    write_product,
)
from fco_cli.kernels.tiles import to_tiles
from fco_cli.problem.regularizers.base import Ball, Regularizer, non_negative, scale
from fco_cli.problem.regularizers.sets import l1_ball_threshold

FEASIBILITY_TOLERANCE = 1e-12  # relative; exceeded if the radius is so small that the threshold loses digits


@kernel
def rank_tolerance(w, length):
    """Return the relative tolerance of the numerical rank: smaller singular values, over the norm, count as zero.

    Rounding of the entries perturbs the singular values by eps * norm, and sums over `length` entries by up to `length`
    times as much. Singular vectors below the tolerance are rounding noise and differ between processors.
    """
    eps = 2.3e-16 if w.itemsize == 8 else 1.2e-7
    return max(length * eps, ROUNDING)


@dataclass(kw_only=True)
class Nuclear(Regularizer):
    """Nuclear norm: psi(W) = strength * (sum of the singular values of W)."""

    strength: float  # factor of the penalty, at least 0
    name: str = "nuclear"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise UserError for vectors; a block of more axes is the matrix of its first axis by all others."""
        is_matrix = len(shape) >= 2
        require(is_matrix, "regularizer", self.name, f"a regularizer of vectors; the weights have shape {shape}")

    @staticmethod
    @kernel
    def value(w, psi, block):
        total, values = 0.0, singular_values(w, block)
        for i in range(values.shape[0]):
            total += values[i]
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Apply singular value thresholding: replace each s_i with max(s_i - t * strength, 0)."""
        threshold = t * psi.strength
        if threshold <= 0:
            copy(z, out)
            return
        a, norm = to_tiles(z, block)
        if norm <= threshold:  # no singular value exceeds the norm
            scale(z, 0.0, out)
            return
        threshold = max(threshold / norm, NEGLIGIBLE)
        accuracy = 1e-12 if z.itemsize == 8 else 1e-8  # relative; smaller inner products do not change the result
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), accuracy * threshold)
        weights = squared
        for i in range(weights.shape[0]):
            below = squared[i] <= threshold * threshold
            weights[i] = 0.0 if below else norm * (1 - threshold / np.sqrt(squared[i]))
        write_product(u, weights, rows, block, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        """Write the subgradient of least norm to out: strength * U V^T over the non-zero singular values."""
        a, _norm = to_tiles(w, block)
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), 0.0)
        weights, tolerance = squared, rank_tolerance(w, max(block.rows, block.columns))
        for i in range(weights.shape[0]):
            singular = np.sqrt(squared[i])
            weights[i] = 0.0 if singular <= tolerance else psi.strength / singular
        write_product(u, weights, rows, block, out)


@dataclass(kw_only=True)
class NuclearBall(Ball):
    """Nuclear norm ball: the singular values of W sum to at most radius."""

    name: str = "nuclear_ball"
    bounds_two_norm = True

    check = Nuclear.check

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        a, norm = to_tiles(z, block)
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), 0.0)
        singular, total, radius = np.empty(squared.shape[0]), 0.0, psi.radius / norm if norm != 0 else np.inf
        for i in range(squared.shape[0]):
            singular[i] = np.sqrt(squared[i])
            total += singular[i]
        if total <= radius:
            copy(z, out)
            return
        threshold = l1_ball_threshold(singular, total, radius)
        share, total = np.empty(squared.shape[0]), 0.0
        for i in range(squared.shape[0]):
            share[i] = 0.0 if singular[i] <= threshold else 1 - threshold / singular[i]  # NaN stays NaN
            total += share[i] * singular[i]
        factor = norm * (radius / total if total > radius * (1 + FEASIBILITY_TOLERANCE) else 1.0)
        for i in range(squared.shape[0]):
            share[i] *= factor
        write_product(u, share, rows, block, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write -radius u v^T to out, with the singular vectors of the largest singular value."""
        a, _norm = to_tiles(g, block)
        u, rows, squared = singular_pairs(a, min(block.rows, block.columns), 0.0)
        top, weights = 0, np.zeros(squared.shape[0])
        for i in range(squared.shape[0]):
            if squared[i] > squared[top]:
                top = i
        weights[top] = 0.0 if squared[top] == 0 else -psi.radius / np.sqrt(squared[top])
        write_product(u, weights, rows, block, out)
