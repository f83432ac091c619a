"""The nuclear norm, by a compiled singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import copy, is_finite, kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, scale, two_norm

ANGLE = 1e-13  # the cosine up to which two rows count as orthogonal
SWEEPS = 40  # a bound that is never reached: about two suffice for an eigenvalue, ten for the worst rows
ROUNDING = 1e-15  # a singular value up to this share of the norm is rounding error
NOTHING = 1e-20  # and up to this far below it


@kernel
def inner(x, y):
    total = 0.0
    for c in range(x.shape[0]):
        total += x[c] * y[c]
    return total


@kernel
def rotate(x, y, cosine, sine):
    for c in range(x.shape[0]):
        u, v = x[c], y[c]
        x[c] = cosine * u - sine * v
        y[c] = sine * u + cosine * v


@kernel
def tridiagonal(g, a, diagonal, beside):
    """Reflections that make the symmetric `g` tridiagonal (Householder), applied to the rows of `a` as well.

    The loops run over whole rows, zeros included: loops that get shorter at every step vectorize badly.
    """
    count, length = a.shape
    v, p, w = np.zeros(count), np.zeros(count), np.empty(length)
    for k in range(count):
        diagonal[k] = g[k, k]
        beside[k] = v[k] = p[k] = 0
        squared = 0.0
        for c in range(k + 1, count):
            v[c] = g[k, c]
            squared += v[c] * v[c]
        if squared <= 1e-40:  # nothing to reflect, as always in the last row
            continue
        beside[k] = -np.copysign(np.sqrt(squared), v[k + 1])
        factor = 1 / (squared - beside[k] * v[k + 1])
        v[k + 1] -= beside[k]
        for c in range(length):
            w[c] = 0
        overlap = 0.0
        for r in range(k + 1, count):
            row, weight = a[r], factor * v[r]
            p[r] = factor * inner(g[r], v)
            overlap += weight * p[r]
            for c in range(length):
                w[c] += weight * row[c]
        for r in range(k + 1, count):
            target, row, first, second = g[r], a[r], v[r], p[r] - overlap * v[r]
            for c in range(count):
                target[c] -= first * p[c] + second * v[c]
            for c in range(length):
                row[c] -= first * w[c]


@kernel
def diagonalize(diagonal, beside, a):
    """Rotations that make a tridiagonal matrix of trace 1 diagonal (implicit QL), applied to the rows of `a`."""
    count = diagonal.shape[0]
    for low in range(count):
        for _ in range(SWEEPS):
            high = low
            while high < count - 1 and abs(beside[high]) > 2e-16:
                high += 1
            if high == low:
                break
            g = (diagonal[low + 1] - diagonal[low]) / (2 * beside[low])
            g = diagonal[high] - diagonal[low] + beside[low] / (g + np.copysign(np.sqrt(g * g + 1), g))
            cosine, sine, shift = 1.0, 1.0, 0.0
            for i in range(high - 1, low - 1, -1):
                f, b = sine * beside[i], cosine * beside[i]
                square = f * f + g * g
                r, inverse = np.sqrt(square), 1 / square  # at the same time, where f / r has to wait for the root
                beside[i + 1] = r
                cosine, sine = (g * inverse * r, f * inverse * r) if square > 1e-300 else (1.0, 0.0)
                g = diagonal[i + 1] - shift
                r = (diagonal[i] - g) * sine + 2 * cosine * b
                shift = sine * r
                diagonal[i + 1] = g + shift
                g = cosine * r - b
                rotate(a[i], a[i + 1], cosine, sine)
            diagonal[low] -= shift
            beside[low], beside[high] = g, 0


@kernel
def are_orthogonal(product, alpha, beta, slack):
    """Two rows with this product and these squared lengths: by their angle, by `slack`, or where all is rounding."""
    rounding = max(alpha, beta) <= ROUNDING * ROUNDING or min(alpha, beta) <= NOTHING * NOTHING
    return rounding or product * product <= max(ANGLE * ANGLE * alpha * beta, slack * slack)


@kernel
def all_orthogonal(g, slack):
    result = True
    for i in range(g.shape[0]):
        for k in range(i):
            result &= are_orthogonal(g[i, k], g[i, i], g[k, k], slack)
    return result


@kernel
def jacobi(g, a, turned, slack):
    """Rotate every pair of rows of `a` that is not orthogonal; the diagonal of `g` has their squared lengths."""
    for i in range(a.shape[0]):
        for k in range(i):
            product, alpha, beta = inner(a[i], a[k]), g[i, i], g[k, k]
            if are_orthogonal(product, alpha, beta, slack):
                continue
            difference = beta - alpha
            root = np.sqrt(difference * difference + 4 * product * product)
            tangent = 2 * product / (difference + np.copysign(root, difference))
            cosine = 1 / np.sqrt(1 + tangent * tangent)
            rotate(turned[i], turned[k], cosine, cosine * tangent)
            g[i, i] -= tangent * product
            g[k, k] += tangent * product


@kernel
def orthogonal_rows(a, turned, threshold):
    """Rotate the rows of `a`, of norm 1, in place until they are orthogonal; return their squared lengths.

    What is rotated is `turned`: `a` itself, or a wider matrix of which it is a part.

    The rows then are singular value times right singular vector. The first sweep takes the eigenvectors of A A^T, whose
    rounding errors hide singular values below 1e-8; one-sided Jacobi (Hestenes) puts that right in the others. They are
    seldom needed if `threshold` (0 for full accuracy) will be taken from the singular values: products of rows that are
    small beside it then hardly change the result, here by 1e-12. For small matrices this beats LAPACK.
    """
    count, slack = a.shape[0], 1e-12 * threshold
    g, squared, beside = np.empty((count, count)), np.empty(count), np.empty(count)
    for sweep in range(SWEEPS):
        for i in range(count):
            for k in range(i + 1):
                g[i, k] = g[k, i] = inner(a[i], a[k])
            squared[i] = g[i, i]
        if all_orthogonal(g, slack) or not is_finite(squared[0]):
            break
        if sweep == 0:
            tridiagonal(g, turned, squared, beside)
            diagonalize(squared, beside, turned)
        else:
            jacobi(g, a, turned, slack)
    return squared


@kernel
def wide(z, block):
    """A copy with no more rows than columns, transposed if need be, and of norm 1; and the norm that the matrix had.

    Without it the squares of squares soon leave the range of numbers. A matrix that is not finite is NaN here. All is
    in float64, whatever z is.
    """
    rows, columns = block.rows, block.columns
    matrix, norm = np.empty((min(rows, columns), max(rows, columns))), two_norm(z)
    norm = norm if is_finite(norm) else np.nan
    inverse = 1 / norm if norm != 0 else 0.0
    for r in range(rows):
        for c in range(columns):
            if rows <= columns:
                matrix[r, c] = inverse * z[r * columns + c]
            else:
                matrix[c, r] = inverse * z[r * columns + c]
    return matrix, norm


@kernel
def unfold(matrix, block, out):
    """The opposite of `wide`."""
    rows, columns = block.rows, block.columns
    for r in range(rows):
        for c in range(columns):
            out[r * columns + c] = matrix[r, c] if rows <= columns else matrix[c, r]


@kernel
def spectral(a, rows, factors, block, out):
    """out = sum_i factors_i (A v_i) v_i^T, with rows_i = s_i v_i and factors that include 1/s_i^2."""
    result = np.zeros_like(a)
    for i in range(rows.shape[0]):
        if factors[i] == 0:
            continue
        v = rows[i]
        for r in range(a.shape[0]):
            target, weight = result[r], factors[i] * inner(a[r], v)
            for c in range(a.shape[1]):
                target[c] += weight * v[c]
    unfold(result, block, out)


@kernel
def singular_pairs(a):
    """[S V^T | U^T], a row for every singular value, and their squares.

    The rotations are collected beside the rows, from [A | I] on: U as A V / S would amplify what is left of an angle
    between two rows by the ratio of their singular values.
    """
    count, length = a.shape
    turned = np.zeros((count, length + count))
    for r in range(count):
        turned[r, length + r] = 1
        for c in range(length):
            turned[r, c] = a[r, c]
    return turned, orthogonal_rows(turned[:, :length], turned, 0.0)


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
        a, norm = wide(w, block)
        squared = orthogonal_rows(a, a, 0.0)
        total = 0.0
        for i in range(squared.shape[0]):
            total += np.sqrt(squared[i])
        return psi.strength * norm * total

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
        factors = orthogonal_rows(rows, rows, threshold)
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
        count, length = a.shape
        turned, squared = singular_pairs(a)
        result, zero = np.zeros_like(a), zero_share(w, length)
        for i in range(count):
            singular = np.sqrt(squared[i])
            if singular <= zero:
                continue
            for r in range(count):
                weight = psi.strength / singular * turned[i, length + r]
                for c in range(length):
                    result[r, c] += weight * turned[i, c]
        unfold(result, block, out)
