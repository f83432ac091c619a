"""Site bias: a bias per client that minimizes the client's loss at the current weights and stays at the client.

The objective of client m is F_m(w) = min_b of its loss, which is as smooth and convex as the loss itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fco_cli.kernels.compiled import Kernel, declared, is_finite, kernel, specialize
from fco_cli.kernels.products import batch_in_place
from fco_cli.problem.losses.base import Loss, on_row
from fco_cli.problem.models.linear import Model

prange = range  # Numba's parallel range in the compiled kernel
MAX_STEPS = 300  # bisection alone narrows a bracket by a factor 1e90
SATURATED = 40.0  # score at which a logistic or Poisson loss equals its infimum in float64: e^-40 < 2^-53


model: Model = declared(Model)


@kernel
def slope_at_bias(bias, scores, y, rows):
    """Return the derivative of the batch loss by a bias added to the scores [B], and its rounding error.

    The derivative is non-decreasing in the bias.
    """
    total, size, row = 0.0, 0.0, np.empty(1)
    for i in range(rows.shape[0]):
        row[0] = scores[i] + bias
        on_row.slope(row, on_row.label_of(y, rows[i]))
        total += on_row.weight_of(y, rows[i]) * row[0]
        size += on_row.weight_of(y, rows[i]) * abs(row[0])
    return total, 1e-16 * size


@kernel
def bias_bounds(scores, y, rows):
    """Return the smallest and the largest optimal bias of a single row, which bracket that of the batch.

    The optimal bias of a row leads to its optimal score. If that score is infinite for some rows, a bound is infinite.
    If it is infinite with the same sign for all rows, as for logistic labels that are all 1, the loss has no minimizer:
    both bounds are then the smallest bias in magnitude that brings every score to SATURATED or beyond. If a score is
    not finite, both bounds are NaN.
    """
    low, high, least, most = math.inf, -math.inf, math.inf, -math.inf
    for i in range(rows.shape[0]):
        if not is_finite(scores[i]):
            return math.nan, math.nan
        if on_row.weight_of(y, rows[i]) > 0:
            optimal = on_row.optimal_score(on_row.label_of(y, rows[i])) - scores[i]
            low, high = min(low, optimal), max(high, optimal)
            least, most = min(least, np.float64(scores[i])), max(most, np.float64(scores[i]))
    if low == math.inf:
        low = high = SATURATED - least
    elif high == -math.inf:
        low = high = -SATURATED - most
    return low, high


@kernel
def find_root(a, at_a, b, at_b, scores, y, rows):
    """Return the root of `slope_at_bias` between a and b, where its signs differ (Chandrupatla, 1997).

    The method uses inverse quadratic interpolation through the last three points where that is reliable, otherwise
    bisection.
    """
    share = 0.5
    for _ in range(MAX_STEPS):
        bias = a + share * (b - a)
        if not min(a, b) < bias < max(a, b):
            bias = a / 2 + b / 2
        at, error = slope_at_bias(bias, scores, y, rows)
        if abs(at) <= error or abs(b - a) <= 1e-15 * abs(bias):
            return bias
        c, at_c = a, at_a
        if (at < 0) != (at_a < 0):
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a, share = bias, at, 0.5  # a and b bracket the root, c is the discarded point
        if at_b != at_c:
            position, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
            if height * height < position and (1 - height) * (1 - height) < 1 - position:
                share = at_a / (at_b - at_a) * at_c / (at_b - at_c)
                share += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
    return bias


@kernel
def best_bias(scores, y, rows):
    """Return the bias that minimizes the batch loss, or the bound of `bias_bounds` if there is no minimizer.

    An infinite bound is replaced with a finite one by steps of doubling length.
    """
    low, high = bias_bounds(scores, y, rows)
    if not low < high:
        return low
    unbounded_below, unbounded_above, step = low == -math.inf, high == math.inf, 1.0
    low = min(high, 0.0) - step if unbounded_below else low
    high = max(low, 0.0) + step if unbounded_above else high
    at_low, at_high = slope_at_bias(low, scores, y, rows)[0], slope_at_bias(high, scores, y, rows)[0]
    while unbounded_below and at_low > 0:
        high, at_high, step = low, at_low, 2 * step
        low -= step
        at_low = slope_at_bias(low, scores, y, rows)[0]
    while unbounded_above and at_high < 0:
        low, at_low, step = high, at_high, 2 * step
        high += step
        at_high = slope_at_bias(high, scores, y, rows)[0]
    if at_low >= 0 or at_high <= 0:
        return low if at_low >= 0 else high
    return find_root(low, at_low, high, at_high, scores, y, rows)


@kernel
def with_site_bias(scores, y, rows, seen, slopes):
    """Apply `each_row` to scores [J, 1, B] with the optimal bias of the client added.

    By the envelope theorem, the slopes are those of the loss minimized over the bias.
    """
    for j in range(scores.shape[0]):
        bias = best_bias(scores[j, 0], y, rows)
        for i in range(rows.shape[0]):
            scores[j, 0, i] += bias
    on_row.each_row(scores, y, rows, seen, slopes)


@kernel
def client_biases(w, x, y, widths, start, biases):
    """Write the optimal bias of each client and job to biases [M, J]."""
    for m in prange(start.shape[0] - 1):
        rows = np.arange(start[m], start[m + 1])
        scores = model.forward(w, batch_in_place(x, rows), widths)
        for j in range(w.shape[0]):
            biases[m, j] = best_bias(scores[j, 0], y, rows)


def bias_finder(parts: dict[str, Any], loss: Loss) -> Kernel:
    """Return `best_bias` for a loss; `parts` are the kernels of descent.row_kernels that read labels and weights."""
    return specialize(best_bias, on_row={**parts, "optimal_score": loss.bound_kernel("optimal_score")})
