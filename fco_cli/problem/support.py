"""Comparison of models with the true weights: support and distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array


class SupportComparison(NamedTuple):
    """Comparison with the true weights for every job: [J]."""

    found: Array  # number of weights above the threshold
    hits: Array  # number of these that are not 0 in the true weights
    distance: Array  # |w - truth|


@kernel
def compare(w, truth, threshold, found, hits, distance):
    """Compare the first n weights of models [J, P] with the true weights [n], in one pass."""
    for j in range(w.shape[0]):
        large, right, squares = 0, 0, 0.0
        for i in range(truth.shape[0]):
            if abs(w[j, i]) > threshold:
                large += 1
                right += truth[i] != 0
            squares += (w[j, i] - truth[i]) ** 2
        found[j], hits[j], distance[j] = large, right, np.sqrt(squares)


def compare_support(w: Array, truth: Array, threshold: float) -> SupportComparison:
    """Return the comparison of the first n weights of models [J, P] with the true weights [n]."""
    jobs = len(w)
    result = SupportComparison(np.empty(jobs, np.int64), np.empty(jobs, np.int64), np.empty(jobs))
    compare(w, truth, threshold, *result)
    return result
