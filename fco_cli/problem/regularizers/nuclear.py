"""The nuclear norm, by a compiled singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, scale
from fco_cli.problem.regularizers.singular import (
    NOTHING,
    ROUNDING,
    TILE,
    left_entry,
    orthogonal_rows,
    singular_pairs,
    singular_values,
    spectral,
    wide,
    write_row,
)


@kernel
def zero_share(w, length):
    """Up to this share of the matrix's norm a singular value counts as zero.

    Rounding the entries of a matrix moves its singular values by eps * norm, and a sum over `length` entries by up to
    `length` times as much (the rule of numerical rank). What is below is 0 as far as anyone can tell, and its vectors
    are noise that differs between processors. What is left out weighs no more than its singular values: nothing.
    """
    eps = 2.3e-16 if w.itemsize == 8 else 1.2e-7
    return max(length * eps, ROUNDING)


@dataclass(kw_only=True)
class Nuclear(Regularizer):
    """psi(W) = strength * (sum of the singular values of W)."""

    strength: float
    name: str = "nuclear"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    def check(self, shape: tuple[int, ...]) -> None:
        require(len(shape) == 2, "regularizer", self.name, f"one for vectors: this task's kernel has shape {shape}")

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
        """Singular value thresholding: every s_i becomes max(s_i - t * strength, 0)."""
        threshold = t * psi.strength
        if threshold <= 0:
            copy(z, out)
            return
        a, norm = wide(z, block)
        if norm <= threshold:  # then so is every singular value
            scale(z, 0.0, out)
            return
        rows, threshold = a.copy(), max(threshold / norm, NOTHING)
        share = 1e-12 if z.itemsize == 8 else 1e-8  # products of rows this small beside it change the result as little
        factors = orthogonal_rows(rows, rows.shape[0], min(block.rows, block.columns), share * threshold)
        for i in range(factors.shape[0]):
            if factors[i] <= threshold * threshold:
                factors[i] = 0
            else:
                factors[i] = norm * (1 - threshold / np.sqrt(factors[i])) / factors[i]
        spectral(a, rows, factors, block, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        """The smallest subgradient: strength * U V^T over the non-zero singular values."""
        a, _norm = wide(w, block)
        count, length, own = min(block.rows, block.columns), max(block.rows, block.columns), a.shape[0]
        turned, squared = singular_pairs(a, count)
        weights, line, zero = np.zeros((count + 7) // 8 * 8), np.empty(TILE), zero_share(w, length)
        for r in range(count):
            for i in range(count):
                singular = np.sqrt(squared[i])
                if not singular <= zero:
                    weights[i] = psi.strength / singular * left_entry(turned, own, i, r)
            write_row(weights, turned, r, line, block, out)
