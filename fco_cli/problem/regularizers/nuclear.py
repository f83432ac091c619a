"""The nuclear norm, by a compiled one-sided Jacobi singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import copy, is_finite, kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, squared_length

SWEEPS = 40  # a bound that is never reached: about eight sweeps suffice


@kernel
def squared_lengths(a, squared):
    for i in range(a.shape[0]):
        squared[i] = squared_length(a[i])


@kernel
def rotations(products, alphas, betas, tolerance, negligible, cosines, sines, shifts):
    """For pairs of vectors with these products and squared lengths, the rotations that make them orthogonal.

    A pair that is orthogonal already, or negligible, gets the sine 0. Without a branch this runs several pairs at once.
    """
    one, zero = products.dtype.type(1), products.dtype.type(0)
    for q in range(products.shape[0]):
        product, difference = products[q], betas[q] - alphas[q]
        root = np.sqrt(difference * difference + 4 * product * product)
        tangent = 2 * product / (abs(difference) + root + negligible)
        tangent = tangent if difference >= 0 else -tangent
        orthogonal = product * product <= tolerance * alphas[q] * betas[q]
        tangent = zero if orthogonal or max(alphas[q], betas[q]) <= negligible else tangent
        cosines[q] = one / np.sqrt(one + tangent * tangent)
        sines[q] = cosines[q] * tangent
        shifts[q] = tangent * product


@kernel
def orthogonal_rows(a):
    """Rotate the rows of `a` in place until they are orthogonal; return their squared lengths.

    One-sided Jacobi (Hestenes): the rows then are singular value times right singular vector. The pairs of a sweep come
    as in a round-robin tournament, so that those of a step share no row and the processor works on several at once:
    for small matrices that beats LAPACK. A matrix that has blown up, so that products of squared lengths overflow,
    gives NaN.
    """
    count, length = a.shape
    kind = a.dtype.type
    eps = 1e-15 if a.itemsize == 8 else 1e-7
    tolerance = kind(1e-24 if a.itemsize == 8 else 1e-13)  # on the squared cosine between rows
    squared = np.empty(count, a.dtype)
    squared_lengths(a, squared)
    total = 0.0
    for i in range(count):
        total += squared[i]
    if not is_finite(kind(total) * kind(total)):
        for i in range(count):
            squared[i] = np.nan
        return squared
    negligible = kind(total * eps * eps)
    seats = count + count % 2  # with an odd number of rows, one has a rest at every step
    pairs = seats // 2
    ring = np.arange(seats)
    products, alphas, betas = np.zeros(pairs, a.dtype), np.ones(pairs, a.dtype), np.ones(pairs, a.dtype)
    cosines, sines, shifts = np.empty(pairs, a.dtype), np.empty(pairs, a.dtype), np.empty(pairs, a.dtype)
    for _ in range(SWEEPS):
        rotated = False
        for _ in range(seats - 1):
            for q in range(pairs):
                i, k = ring[q], ring[seats - 1 - q]
                if i < count and k < count:
                    first, second = a[i], a[k]
                    product = kind(0)
                    for c in range(length):
                        product += first[c] * second[c]
                    products[q], alphas[q], betas[q] = product, squared[i], squared[k]
                else:
                    products[q] = 0
            rotations(products, alphas, betas, tolerance, negligible, cosines, sines, shifts)
            for q in range(pairs):
                if sines[q] != 0:
                    rotated = True
                    i, k = ring[q], ring[seats - 1 - q]
                    first, second, cosine, sine = a[i], a[k], cosines[q], sines[q]
                    for c in range(length):
                        u, v = first[c], second[c]
                        first[c] = cosine * u - sine * v
                        second[c] = sine * u + cosine * v
                    squared[i] -= shifts[q]
                    squared[k] += shifts[q]
            moved = ring[seats - 1]
            for q in range(seats - 1, 1, -1):
                ring[q] = ring[q - 1]
            ring[1] = moved
        squared_lengths(a, squared)  # exact once a sweep: the updates above accumulate rounding
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
        # Squares below these are zero but for rounding: their vectors are noise, and the division would overflow.
        relative, absolute = (1e-20, 1e-200) if w.itemsize == 8 else (1e-7, 1e-24)
        tiny = max(relative * max(factors), absolute)
        for i in range(factors.shape[0]):
            if factors[i] <= tiny:
                factors[i] = 0
            else:
                factors[i] = p[0] / (factors[i] * np.sqrt(factors[i]))
        spectral(a, rows, factors, shape, out)
