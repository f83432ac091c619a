"""Moments of a client's rows, for losses with a quadratic approximation: second moments, and products with the slopes.

The contribution of a row with a = (x, 1) and the slope c of its loss at score 0 is a part of the matrix u u', where
u = (a, c). For privacy, u is clipped to a norm C. Replacing one row then changes the sum of u u' by at most sqrt(2) C^2
in the Frobenius norm, and every distinct entry of the sum gets noise once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from fco_cli.kernels.compiled import Kernel, is_finite, kernel, specialize
from fco_cli.kernels.products import two_norm
from fco_cli.problem.client_curvature import index_in_triangle, pad_triangle
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import row_kernels
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.base import on_row
from fco_cli.problem.private_descent import noise_scale

log = logging.getLogger(__name__)

FAR_FROM_CENTER = 1e-6  # variance of a column, relative to its second moment, below which sums lose too many digits


def centered_moments(matrix: Array) -> Array:
    """Return the centered second moments [P - 1, P - 1] of the features from those of (x, 1) [P, P]."""
    means = matrix[:-1, -1]
    return matrix[:-1, :-1] - np.outer(means, means) / max(matrix[-1, -1], np.finfo(float).tiny)


def log_condition(matrices: Sequence[Array]) -> None:
    """Log the largest condition number of centered, scaled second moments of (x, 1)."""
    numbers = []
    for matrix in matrices:
        centered = centered_moments(matrix)
        spread = centered.diagonal()
        varies = spread > 0
        if not np.isfinite(centered).all():
            numbers.append(np.inf)
            continue
        units = np.sqrt(spread[varies])
        values = np.append(np.linalg.eigvalsh(centered[np.ix_(varies, varies)] / units / units[:, None]), 1.0)
        numbers.append(values.max() / values.min() if values.min() > 0 else np.inf)
    log.info("moments: condition number %.1e (columns centered and scaled)", max(numbers))


def warn_of_lost_digits(matrices: Sequence[Array]) -> None:
    """Warn once if the second moments of (x, 1) determine the variance of a column to less than ten digits."""
    fewest = np.inf
    columns: set[int] = set()
    for matrix in matrices:
        moments = matrix.diagonal()[:-1]
        ratios = np.divide(centered_moments(matrix).diagonal(), moments, out=np.ones_like(moments), where=moments > 0)
        columns |= set(np.flatnonzero(ratios < FAR_FROM_CENTER).tolist())
        fewest = min(fewest, float(ratios.min(initial=1.0)))
    if columns:
        digits = max(0, math.floor(16 + math.log10(fewest))) if fewest > 0 else 0
        log.warning(
            "moments: %d columns are constant, or their means exceed 1,000 times their standard deviations, so that "
            "the sums determine their variances to about %d of 16 digits; center the columns (task.standardize=true)",
            len(columns), digits,
        )  # fmt: skip


@kernel
def whole_row(length, batches, j):
    """Return the factor of an exact contribution."""
    return 1.0


@kernel
def clipped_row(length, batches, j):
    """Return the factor of the contribution of a row u that is clipped to the norm clip_norm; 0 if it is not finite."""
    if not is_finite(length):
        return 0.0
    limit = batches.numbers[j].clip_norm
    return 1.0 if length <= limit else (limit / length) ** 2


@kernel
def without_noise(matrix, vector, batches):
    """Leave the sums as they are."""


@kernel
def with_noise(matrix, vector, batches):
    """Add noise to every distinct entry of the sums; overwrite the noise by NaN."""
    noise, size = batches.noise, vector.shape[1]
    deviations = noise_scale(batches.numbers, 2)
    for j in range(vector.shape[0]):
        own = min(j, noise.shape[1] - 1)
        if deviations[j] > 0:
            for a in range(size):
                vector[j, a] += deviations[j] * noise[size, own, a]
                for b in range(a, size):
                    k = index_in_triangle(a, b, size)
                    matrix[k // size, j, k % size] += deviations[j] * noise[a, own, b]
    for n in range(size + 1):
        for j in range(noise.shape[1]):
            for a in range(size):
                noise[n, j, a] = math.nan


@kernel
def moments(matrix, vector, batches):
    """Assign matrix <- mean of weight a a' and vector [J, P] <- mean of weight c a over the client's rows.

    matrix [slots, J, P] is the upper triangle, row by row.
    """
    x, y, size = batches.x, batches.y, vector.shape[1]
    rows, slope, row = y.shape[0], np.empty(1, vector.dtype), np.ones(size, vector.dtype)
    for j in range(vector.shape[0]):
        for a in range(size):
            vector[j, a] = 0
    pad_triangle(matrix, 0)
    for i in range(rows):
        for a in range(size - 1):
            row[a] = x[i, a]
        slope[0] = 0
        on_row.slope(slope, on_row.label_of(y, i))
        length = math.hypot(two_norm(row), slope[0])
        for j in range(vector.shape[0]):
            share = row_factor(length, batches, j) * on_row.weight_of(y, i)
            if share > 0:
                k = 0
                for a in range(size):
                    vector[j, a] += share * slope[0] * row[a]
                    for b in range(a, size):
                        matrix[k // size, j, k % size] += share * row[a] * row[b]
                        k += 1
    add_noise(matrix, vector, batches)
    for j in range(vector.shape[0]):
        for a in range(size):
            vector[j, a] /= rows
        for n in range(matrix.shape[0]):
            for k in range(size):
                matrix[n, j, k] /= rows


row_factor, add_noise = whole_row, without_noise  # bound by `specialize`


def moments_kernel(data: ClientData, loss: Loss, private: bool) -> Kernel:
    """Return `moments` for a loss and the data's format, on batches with or without noise."""
    factor, noise = (clipped_row, with_noise) if private else (whole_row, without_noise)
    return specialize(moments, on_row=row_kernels(data, loss), row_factor=factor, add_noise=noise)
