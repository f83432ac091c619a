"""Which weights of models count as non-zero, and how they compare with the true ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array


class Compared(NamedTuple):
    """Of every job: [J]."""

    found: Array  # how many weights are above the threshold
    hits: Array  # how many of them are not 0 in truth
    distance: Array  # |w - truth|


@kernel
def compare(w, truth, threshold, found, hits, distance):
    """The first n weights of models [J, P] and the true ones [n], in one pass."""
    for j in range(w.shape[0]):
        large, right, squares = 0, 0, 0.0
        for i in range(truth.shape[0]):
            if abs(w[j, i]) > threshold:
                large += 1
                right += truth[i] != 0
            squares += (w[j, i] - truth[i]) ** 2
        found[j], hits[j], distance[j] = large, right, np.sqrt(squares)


def compared(w: Array, truth: Array, threshold: float) -> Compared:
    """The first weights of models [J, P], as many as the truth [n] has."""
    jobs = len(w)
    result = Compared(np.empty(jobs, np.int64), np.empty(jobs, np.int64), np.empty(jobs))
    compare(w, truth, threshold, *result)
    return result
