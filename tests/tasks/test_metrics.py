"""A diverged matrix must not have rank 0, which would count as success."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

from fco_cli.tasks.metrics import compare_support, density, rank, sparse_recovery, support_recovery

TRUTH = np.array([1.0, 1.0, 0.0, 0.0])


@given(estimate=arrays(bool, (3, 8)), truth=arrays(bool, 8))
def test_support_recovery_is_scikit_learns(estimate, truth):
    from sklearn.metrics import precision_recall_fscore_support

    ours = support_recovery(estimate, truth)
    for j in range(3):
        theirs = precision_recall_fscore_support(truth, estimate[j], average="binary", zero_division=0)
        for name, value in zip(("precision", "recall", "f1"), theirs[:3], strict=True):
            np.testing.assert_allclose(ours[name][j], value)


def test_nothing_found_is_zero_not_nan():
    nothing, everything = np.zeros((1, 4), bool), np.ones((1, 4), bool)
    for estimate, truth in ((nothing, everything[0]), (everything, nothing[0]), (nothing, nothing[0])):
        assert support_recovery(estimate, truth)["f1"] == 0


def test_density():
    np.testing.assert_array_equal(density(np.array([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)), [0.25, 1, 0])


def test_sparse_recovery_is_that_of_the_weights_above_the_threshold():
    random = np.random.default_rng(0)
    w, truth = random.standard_normal((5, 9)), np.repeat([1.0, 0.0], 4)
    support, found = np.abs(w[:, :-1]) > 0.5, sparse_recovery(w, truth, 0.5)
    expected = support_recovery(support, truth != 0) | {"density": density(support)}
    assert list(found) == [*expected, "recovery_error"]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    np.testing.assert_allclose(found["recovery_error"], np.linalg.norm(w[:, :-1] - truth, axis=1))


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3), (1, 5)])
def test_rank_is_numpys(shape):
    random = np.random.default_rng(0)
    matrices = [np.zeros(shape), random.standard_normal(shape), np.ones(shape)]
    matrices += [1e-3 * random.standard_normal(shape), matrices[1] * 1e-3 + matrices[2]]
    stack = np.array(matrices)
    expected = [np.linalg.matrix_rank(matrix, tol=1e-2) for matrix in matrices]
    np.testing.assert_array_equal(rank(stack, 1e-2), expected)
    np.testing.assert_array_equal(rank(stack.astype(np.float32), 1e-2), expected)


def test_rank_of_a_diverged_matrix():
    """A diverged matrix must not have rank 0, which would count as success."""
    np.testing.assert_array_equal(rank(np.array([np.full((2, 3), 1e200), np.full((2, 3), np.nan)]), 1e-2), [1, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_counts_and_distance(dtype):
    """The bias is ignored; weights at the threshold and NaN do not count as found."""
    w = np.array([[1, 1, 0, 0, 9], [0.5, 0, -2, 0.25, 9], [0, np.nan, 0, 0, 9]], dtype)
    comparison = compare_support(w, TRUTH, 0.25)
    assert comparison.found.tolist() == [2, 2, 0]
    assert comparison.hits.tolist() == [2, 1, 0]
    np.testing.assert_allclose(comparison.distance, np.linalg.norm(w[:, :-1] - TRUTH, axis=1), rtol=1e-14)
