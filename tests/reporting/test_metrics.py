"""Tests of the metrics of figures and claims against scikit-learn and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from fco_cli.tasks.metrics import density, rank, support_recovery

SUPPORTS = {
    "some": ([1, 1, 0, 1, 0], [1, 0, 0, 1, 1]),
    "empty estimate": ([0, 0, 0, 0, 0], [1, 0, 0, 1, 1]),
    "empty truth": ([1, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    "both empty": ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    "disjoint": ([1, 1, 0, 0, 0], [0, 0, 0, 1, 1]),
    "perfect": ([1, 0, 1, 0, 1], [1, 0, 1, 0, 1]),
}


@pytest.mark.parametrize("case", SUPPORTS)
def test_support_recovery_equals_scikit_learn(case):
    estimate, truth = (np.array(support, dtype=bool) for support in SUPPORTS[case])
    expected = precision_recall_fscore_support(truth, estimate, average="binary", zero_division=0)[:3]
    found = support_recovery(estimate[None], truth)
    assert [found[name][0] for name in ("precision", "recall", "f1")] == pytest.approx(expected)


def test_an_empty_support_has_density_and_f1_zero():
    nothing = np.zeros((1, 4), dtype=bool)
    assert density(nothing).tolist() == [0.0]
    assert support_recovery(nothing, np.ones(4, dtype=bool))["f1"].tolist() == [0.0]


@pytest.mark.parametrize("true_rank", [0, 1, 3, 5])
def test_rank_equals_numpy(true_rank):
    random = np.random.default_rng(true_rank)
    matrix = random.standard_normal((5, true_rank)) @ random.standard_normal((true_rank, 7))
    assert rank(matrix[None], 1e-2).tolist() == [np.linalg.matrix_rank(matrix, tol=1e-2)]
