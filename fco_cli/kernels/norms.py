"""Vector norms without overflow."""

from __future__ import annotations

import math

import numpy as np

from fco_cli.kernels.compiled import kernel


@kernel
def squared_length(w):
    """Return |w|_2^2, summed in float64 for every dtype of w."""
    total = 0.0
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        total += entry * entry
    return total


@kernel
def two_norm(w):
    """Return |w|_2; entries are scaled by the largest one if squares overflow or underflow."""
    squared = squared_length(w)
    if 1e-280 < squared < math.inf:
        return np.sqrt(squared)
    top = 0.0
    for i in range(w.shape[0]):
        top = max(top, abs(w[i]))
    if not 1e-300 <= top < math.inf:  # zero or not finite
        return np.sqrt(squared)
    total = 0.0
    for i in range(w.shape[0]):
        share = w[i] / top
        total += share * share
    return top * np.sqrt(total)
