"""The nuclear norm, by a compiled one-sided Jacobi singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, squared_length

SWEEPS = 40  # a bound that is never reached: about eight sweeps suffice


@kernel
def orthogonal_rows(a):
    """Rotate the rows of `a` in place until they are orthogonal; return their squared lengths.

    One-sided Jacobi (Hestenes): the rows then are singular value times right singular vector. Small matrices are
    where it beats LAPACK, and non-finite entries end it at once instead of raising.
    """
    count, length = a.shape
    one = a.dtype.type(1)
    eps = 1e-15 if a.itemsize == 8 else 1e-7
    squared = np.empty(count, a.dtype)
    total = 0.0
    for i in range(count):
        squared[i] = squared_length(a[i])
        total += squared[i]
    negligible = total * eps * eps
    for _ in range(SWEEPS):
        rotated = False
        for i in range(count - 1):
            first = a[i]
            for k in range(i + 1, count):
                second = a[k]
                product = one * 0
                for c in range(length):
                    product += first[c] * second[c]
                alpha, beta = squared[i], squared[k]
                if abs(product) <= 8 * eps * np.sqrt(alpha * beta) or max(alpha, beta) <= negligible:
                    continue
                if not np.isfinite(product):
                    return squared
                rotated = True
                zeta = (beta - alpha) / (2 * product)
                tangent = (one if zeta >= 0 else -one) / (abs(zeta) + np.sqrt(one + zeta * zeta))
                cosine = one / np.sqrt(one + tangent * tangent)
                sine = cosine * tangent
                for c in range(length):
                    u, v = first[c], second[c]
                    first[c] = cosine * u - sine * v
                    second[c] = sine * u + cosine * v
                squared[i] = alpha - tangent * product
                squared[k] = beta + tangent * product
        for i in range(count):  # exact lengths once a sweep: the updates above accumulate rounding
            squared[i] = squared_length(a[i])
        if not rotated:
            break
    return squared


@kernel
def wide(z, shape):
    """A copy of the matrix with no more rows than columns, transposed if need be."""
    rows, columns = shape
    matrix = np.empty((min(rows, columns), max(rows, columns)), z.dtype)
    for r in range(rows):
        for c in range(columns):
            if rows <= columns:
                matrix[r, c] = z[r * columns + c]
            else:
                matrix[c, r] = z[r * columns + c]
    return matrix


@kernel
def spectral(a, rows, factors, shape, out):
    """out = sum_i factors_i (A v_i) v_i^T, with rows_i = s_i v_i and factors that include 1/s_i^2; back in `shape`."""
    result = np.zeros_like(a)
    for i in range(rows.shape[0]):
        if factors[i] == 0:
            continue
        v = rows[i]
        for r in range(a.shape[0]):
            source, target = a[r], result[r]
            product = a.dtype.type(0)
            for c in range(a.shape[1]):
                product += source[c] * v[c]
            weight = factors[i] * product
            for c in range(a.shape[1]):
                target[c] += weight * v[c]
    rows_out, columns_out = shape
    for r in range(rows_out):
        for c in range(columns_out):
            out[r * columns_out + c] = result[r, c] if rows_out <= columns_out else result[c, r]


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
    def value(w, p, shape):
        squared = orthogonal_rows(wide(w, shape))
        total = 0.0
        for i in range(squared.shape[0]):
            total += np.sqrt(squared[i])
        return p[0] * total

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        """Singular value thresholding: every s_i becomes max(s_i - t * strength, 0)."""
        threshold = t * p[0]
        if threshold <= 0:
            copy(z, out)
            return
        a, rows = wide(z, shape), wide(z, shape)
        factors = orthogonal_rows(rows)
        for i in range(factors.shape[0]):
            if factors[i] <= threshold * threshold:
                factors[i] = 0
            else:
                factors[i] = (1 - threshold / np.sqrt(factors[i])) / factors[i]
        spectral(a, rows, factors, shape, out)

    @staticmethod
    @kernel
    def subgradient(w, p, shape, out):
        """The smallest subgradient: strength * U V^T over the non-zero singular values."""
        a, rows = wide(w, shape), wide(w, shape)
        factors = orthogonal_rows(rows)
        tiny = 1e-20 * max(factors)
        for i in range(factors.shape[0]):
            if factors[i] <= tiny:
                factors[i] = 0
            else:
                factors[i] = p[0] / (factors[i] * np.sqrt(factors[i]))
        spectral(a, rows, factors, shape, out)
