"""Metrics of stacked models [J, ...]: support recovery, density, rank."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers import OneBlock
from fco_cli.problem.regularizers.singular import singular_values


def support_recovery(estimate: Array, truth: Array) -> dict[str, Array]:
    """Precision, recall and F1 of supports [J, n] against the true one [n]; 0, not NaN, where nothing is found."""
    hits = np.count_nonzero(estimate & truth, axis=1)
    found, existing = np.count_nonzero(estimate, axis=1), np.count_nonzero(truth)
    return {
        "precision": hits / np.maximum(found, 1),
        "recall": hits / max(existing, 1),
        "f1": 2 * hits / np.maximum(found + existing, 1),
    }


def density(estimate: Array) -> Array:
    """The share of non-zero entries of supports [J, n]."""
    return np.count_nonzero(estimate, axis=1) / estimate.shape[1]


def rank(matrices: Array, threshold: float) -> Array:
    """How many singular values of each matrix [J, r, c] exceed the threshold; all of one that has blown up."""
    shape, ranks = matrices.shape[1:], []
    for matrix in matrices:
        block = OneBlock(0, shape[0], shape[1], np.ones(0))
        values = singular_values(np.ascontiguousarray(matrix).reshape(-1), block)
        ranks.append((~(values <= threshold)).sum())  # NaN counts
    return np.array(ranks)
