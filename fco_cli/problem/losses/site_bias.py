"""A bias of every client's own: it never leaves the client, which takes the best one for its rows at any weights.

What the others see is F_m(w) = min over b of the client's loss, as smooth and convex as the loss itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fco_cli.kernels.aligned import where_they_are
from fco_cli.kernels.compiled import Kernel, is_finite, kernel, specialize
from fco_cli.problem.losses import Loss

prange = range  # Numba's parallel range in the compiled kernel
MAX_STEPS = 300  # so many bisections alone make a bracket 1e90 times narrower
SATURATED = 40.0  # a score at which a logistic or Poisson loss is at its infimum: e^-40 < 2^-53


def forward(w, batch, widths):  # bound by `specialize`, as the next ones
    raise NotImplementedError


def slope(scores, y):
    raise NotImplementedError


def optimal_score(y):
    raise NotImplementedError


def label_of(y, row):
    raise NotImplementedError


def weight_of(y, row):
    raise NotImplementedError


def each_row(scores, y, rows, seen, slopes):
    raise NotImplementedError


@kernel
def slope_at(bias, scores, y, rows):
    """Return the derivative of a batch's loss by a bias that is added to scores [B], and its rounding error.

    The derivative does not decrease with the bias.
    """
    total, size, row = 0.0, 0.0, np.empty(1)
    for i in range(rows.shape[0]):
        row[0] = scores[i] + bias
        slope(row, label_of(y, rows[i]))
        total += weight_of(y, rows[i]) * row[0]
        size += weight_of(y, rows[i]) * abs(row[0])
    return total, 1e-16 * size


@kernel
def bias_bounds(scores, y, rows):
    """Return the smallest and the largest of the rows' own best biases, which enclose the batch's; NaN after overflow.

    A row's own bias leads to its optimal score. Where that score is infinite for some rows, so is a bound. Where it is
    infinite, with one sign, for all of them, as for logistic labels that are all 1, the loss has no minimizer: both
    bounds are then the smallest bias in modulus that leads every row at least to SATURATED.
    """
    low, high, least, most = math.inf, -math.inf, math.inf, -math.inf
    for i in range(rows.shape[0]):
        if not is_finite(scores[i]):
            return math.nan, math.nan
        if weight_of(y, rows[i]) > 0:
            own = optimal_score(label_of(y, rows[i])) - scores[i]
            low, high = min(low, own), max(high, own)
            least, most = min(least, np.float64(scores[i])), max(most, np.float64(scores[i]))
    if low == math.inf:
        low = high = SATURATED - least
    elif high == -math.inf:
        low = high = -SATURATED - most
    return low, high


@kernel
def root_between(a, at_a, b, at_b, scores, y, rows):
    """Return where `slope_at` is 0 between a and b, where its signs are opposite (Chandrupatla, 1997).

    Inverse quadratic interpolation through the last three points where it can be trusted, bisection elsewhere.
    """
    share = 0.5
    for _ in range(MAX_STEPS):
        bias = a + share * (b - a)
        if not min(a, b) < bias < max(a, b):
            bias = a / 2 + b / 2
        at, error = slope_at(bias, scores, y, rows)
        if abs(at) <= error or abs(b - a) <= 1e-15 * abs(bias):
            return bias
        c, at_c = a, at_a
        if (at < 0) != (at_a < 0):
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a, share = bias, at, 0.5  # a and b enclose the root, c is the point that was left out
        if at_b != at_c:
            position, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
            if height * height < position and (1 - height) * (1 - height) < 1 - position:
                share = at_a / (at_b - at_a) * at_c / (at_b - at_c)
                share += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
    return bias


@kernel
def best_bias(scores, y, rows):
    """Return the bias at which the batch's loss is smallest, or that of `bias_bounds` where there is none.

    Where a bound is infinite, steps of doubling length lead to a finite one.
    """
    low, high = bias_bounds(scores, y, rows)
    if not low < high:
        return low
    open_below, open_above, step = low == -math.inf, high == math.inf, 1.0
    low = min(high, 0.0) - step if open_below else low
    high = max(low, 0.0) + step if open_above else high
    at_low, at_high = slope_at(low, scores, y, rows)[0], slope_at(high, scores, y, rows)[0]
    while open_below and at_low > 0:
        high, at_high, step = low, at_low, 2 * step
        low -= step
        at_low = slope_at(low, scores, y, rows)[0]
    while open_above and at_high < 0:
        low, at_low, step = high, at_high, 2 * step
        high += step
        at_high = slope_at(high, scores, y, rows)[0]
    if at_low >= 0 or at_high <= 0:
        return low if at_low >= 0 else high
    return root_between(low, at_low, high, at_high, scores, y, rows)


@kernel
def with_site_bias(scores, y, rows, seen, slopes):
    """`each_row` for a client whose bias is its own: scores [J, 1, B] are seen with the best one added.

    The slopes are then those of the loss that is smallest over the bias, by the envelope theorem.
    """
    for j in range(scores.shape[0]):
        bias = best_bias(scores[j, 0], y, rows)
        for i in range(rows.shape[0]):
            scores[j, 0, i] += bias
    each_row(scores, y, rows, seen, slopes)


@kernel
def client_biases(w, x, y, widths, start, biases):
    """The best bias of every client and job: biases [M, J]."""
    for m in prange(start.shape[0] - 1):
        rows = np.arange(start[m], start[m + 1])
        scores = forward(w, where_they_are(x, rows), widths)
        for j in range(w.shape[0]):
            biases[m, j] = best_bias(scores[j, 0], y, rows)


def bias_finder(parts: dict[str, Any], loss: Loss) -> Kernel:
    """Return `best_bias` for a loss and for the labels and weights of descent.of_a_row."""
    reading = {name: parts[name] for name in ("label_of", "weight_of")}
    bounds = specialize(bias_bounds, optimal_score=loss.bound("optimal_score"), **reading)
    slopes = specialize(slope_at, **parts)
    return specialize(
        best_bias, bias_bounds=bounds, slope_at=slopes, root_between=specialize(root_between, slope_at=slopes)
    )
