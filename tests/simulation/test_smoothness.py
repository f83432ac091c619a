from __future__ import annotations

import numpy as np
import pytest

from fco_cli.simulation.smoothness import estimate_smoothness


def largest_eigenvalue(x, factor):
    """Of factor/n * sum of (x, 1)(x, 1)'."""
    rows = np.hstack([x, np.ones((len(x), 1))])
    return factor * np.linalg.eigvalsh(rows.T @ rows / len(x))[-1]


# At w_0 = 0 the second derivative is 2 for the squared loss and sigmoid' = 1/4 for the logistic one.
@pytest.mark.parametrize(("loss", "factor"), [("squared", 2.0), ("logistic", 0.25)])
def test_exact_where_the_batch_is_all_there_is(make_problem, loss, factor):
    problem = make_problem(loss=loss, sizes=(8,), features=5)
    estimate = estimate_smoothness(problem, seed=0, batch_size=100, iterations=200)
    np.testing.assert_allclose(estimate, largest_eigenvalue(problem.data.x, factor), rtol=1e-3)


def test_the_largest_over_clients(make_problem):
    """A client with features three times as large decides."""
    problem = make_problem(sizes=(6, 6, 6), features=5)
    problem.data.x[6:12] *= 3
    exact = max(largest_eigenvalue(problem.data.client(m).x, 2.0) for m in range(3))
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 6, iterations=200), exact, rtol=1e-6)


@pytest.mark.slow
def test_single_precision_is_good_enough(make_problem):
    single, double = (make_problem(sizes=(8,), features=5, dtype=dtype) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(estimate_smoothness(single, 0, 8), estimate_smoothness(double, 0, 8), rtol=1e-3)


def test_features_that_are_all_zero(make_problem):
    """Then only the bias is curved: 2."""
    problem = make_problem(sizes=(8,), features=5)
    problem.data.x[:] = 0
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 4), 2.0, rtol=1e-9)


def test_a_function_of_the_seed(make_problem):
    problem = make_problem(sizes=(9, 9, 9, 9))
    assert estimate_smoothness(problem, 0, 3) == estimate_smoothness(problem, 0, 3)
    assert estimate_smoothness(problem, 0, 3) != estimate_smoothness(problem, 1, 3)
