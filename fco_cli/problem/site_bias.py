"""A bias of every client's own: it never leaves the client, which takes the best one for its rows at any weights.

What the others see is F_m(w) = min over b of the client's loss, as smooth and convex as the loss itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fco_cli.problem.compiled import Kernel, kernel, specialize
from fco_cli.problem.near import where_they_are

prange = range  # Numba's parallel range in the compiled kernel
LARGEST_BIAS = 40.0  # where there is no best one: e^-40 is nothing beside 1


def forward(w, batch, widths):  # bound by `specialize`, as the next ones
    raise NotImplementedError


def slope(scores, y):
    raise NotImplementedError


def label_of(y, row):
    raise NotImplementedError


def weight_of(y, row):
    raise NotImplementedError


def each_row(scores, y, rows, seen, slopes):
    raise NotImplementedError


@kernel
def slope_at(bias, scores, y, rows):
    """The derivative of a batch's loss by a bias that is added to scores [B]; it grows with the bias."""
    total, row = 0.0, np.empty(1)
    for i in range(rows.shape[0]):
        row[0] = scores[i] + bias
        slope(row, label_of(y, rows[i]))
        total += weight_of(y, rows[i]) * row[0]
    return total


@kernel
def best_bias(scores, y, rows):
    """The bias at which the batch's loss is smallest, by regula falsi with the Illinois rule.

    Where there is none, as for labels that are all 1, the loss goes to its infimum: the bias is then at the limit.
    """
    low, high, step = 0.0, 0.0, 1.0
    at_low = slope_at(low, scores, y, rows)
    at_high = at_low
    while at_low > 0 and low > -LARGEST_BIAS:
        high, at_high = low, at_low
        low, step = low - step, 2 * step
        at_low = slope_at(low, scores, y, rows)
    while at_high < 0 and high < LARGEST_BIAS:
        low, at_low = high, at_high
        high, step = high + step, 2 * step
        at_high = slope_at(high, scores, y, rows)
    if at_low >= 0:
        return low
    if at_high <= 0:
        return high
    for _ in range(100):
        bias = high - at_high * (high - low) / (at_high - at_low)
        at = slope_at(bias, scores, y, rows)
        if at == 0 or not low < bias < high:
            return bias
        if at < 0:
            low, at_low, at_high = bias, at, at_high / 2
        else:
            high, at_high, at_low = bias, at, at_low / 2
        if high - low <= 1e-15 * max(abs(low), abs(high)):
            return bias
    return bias


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


def bias_finder(parts: dict[str, Any]) -> Kernel:
    """`best_bias` for the loss, the labels and the weights of descent.of_a_row."""
    return specialize(best_bias, slope_at=specialize(slope_at, **parts))
