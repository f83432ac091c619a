"""Norms of vectors without overflow."""

from __future__ import annotations

import math

import numpy as np

from fco_cli.kernels.compiled import kernel


@kernel
def squared_length(w):
    """In float64 whatever the precision of w, as is the sum below."""
    total = 0.0
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        total += entry * entry
    return total


@kernel
def two_norm(w):
    """|w|_2, relative to the largest entry where squares would overflow or vanish."""
    squared = squared_length(w)
    if 1e-280 < squared < math.inf:
        return np.sqrt(squared)
    top = 0.0
    for i in range(w.shape[0]):
        top = max(top, abs(w[i]))
    if not 1e-300 <= top < math.inf:  # nothing, or not finite
        return np.sqrt(squared)
    total = 0.0
    for i in range(w.shape[0]):
        share = w[i] / top
        total += share * share
    return top * np.sqrt(total)
