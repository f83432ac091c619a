"""Metrics of stacked models [J, ...]: support recovery, density, rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.kernels.singular import singular_values
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers import BlockInfo


def support_recovery(estimate: Array, truth: Array) -> dict[str, Array]:
    """Return precision, recall and F1 of supports [J, n] for the true support [n]; 0 for an empty support."""
    hits, selected = (np.count_nonzero(support, axis=1) for support in (estimate & truth, estimate))
    return _scores(hits, selected, int(np.count_nonzero(truth)))


def _scores(hits: Array, selected: Array, existing: int) -> dict[str, Array]:
    return {
        "precision": hits / np.maximum(selected, 1),
        "recall": hits / max(existing, 1),
        "f1": 2 * hits / np.maximum(selected + existing, 1),
    }


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


def sparse_recovery(w: Array, truth: Array, threshold: float) -> dict[str, Array]:
    """Return support recovery, density and distance to the true weights [n] of models [J, P].

    Weights up to the threshold count as zero.
    """
    comparison = compare_support(w, truth, threshold)
    scores = _scores(comparison.hits, comparison.found, int(np.count_nonzero(truth)))
    return {**scores, "density": comparison.found / len(truth), "recovery_error": comparison.distance}


def density(estimate: Array) -> Array:
    """Return the share of non-zero entries of supports [J, n]."""
    return np.count_nonzero(estimate, axis=1) / estimate.shape[1]


def rank(matrices: Array, threshold: float) -> Array:
    """Return the number of singular values above the threshold for matrices [J, r, c]; NaN values count as above."""
    shape, ranks = matrices.shape[1:], []
    for matrix in matrices:
        block = BlockInfo(0, shape[0], shape[1], np.ones(0))
        values = singular_values(np.ascontiguousarray(matrix).reshape(-1), block)
        ranks.append((~(values <= threshold)).sum())  # NaN counts
    return np.array(ranks)
