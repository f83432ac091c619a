"""Approximate inverses by nodewise regressions."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.nodewise import nodewise_inverse


def gram(rows: int = 60, features: int = 5) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((rows, features)) @ np.diag(np.arange(1.0, features + 1))
    x[:, 1] += x[:, 0]
    return x.T @ x / rows


def test_rows_satisfy_the_optimality_conditions():
    """|H theta_j - e_j| is at most the penalty divided by the residual variance, in units of the features."""
    hessian = gram()
    inverse = nodewise_inverse(hessian, np.zeros(5, bool), 0.05)
    deviation = np.sqrt(np.diag(hessian))
    scaled, theta = hessian / np.outer(deviation, deviation), inverse * np.outer(deviation, deviation)
    for j in range(5):
        violation = np.abs(scaled @ theta[j] - np.eye(5)[j])
        assert np.delete(violation, j).max() <= 0.05 * theta[j, j] + 1e-7
        assert violation[j] < 1e-9


def test_many_rows_give_the_inverse():
    hessian = gram()
    inverse = nodewise_inverse(hessian, np.array([True, False, False, False, False]), 1e-8)
    np.testing.assert_allclose(inverse, np.linalg.inv(hessian), rtol=1e-4, atol=1e-6)


def test_nodewise_lasso_inverts_a_matrix():
    random = np.random.default_rng(0)
    rows = random.standard_normal((200, 5)) @ random.standard_normal((5, 5))
    matrix, nothing = rows.T @ rows / 200, np.zeros(5, bool)
    np.testing.assert_allclose(nodewise_inverse(matrix, nothing, 1e-12) @ matrix, np.eye(5), atol=1e-7)
    few = rows[:3].T @ rows[:3] / 3
    unit = few / np.sqrt(np.outer(few.diagonal(), few.diagonal()))
    strength = 0.1  # |Theta_j H - e_j| <= strength / tau_j^2, the bound of the lasso's optimality conditions
    inverse = nodewise_inverse(unit, nothing, strength)
    assert (np.abs(inverse @ unit - np.eye(5)) <= strength * inverse.diagonal()[:, None] + 1e-9).all()


def test_a_feature_of_zeros_has_zeros():
    hessian = gram()
    hessian[2] = hessian[:, 2] = 0
    inverse = nodewise_inverse(hessian, np.array([True, False, False, False, False]), 1e-8)
    others = np.array([0, 1, 3, 4])
    assert not inverse[2].any()
    assert not inverse[:, 2].any()
    expected = np.linalg.inv(hessian[np.ix_(others, others)])
    np.testing.assert_allclose(inverse[np.ix_(others, others)], expected, rtol=1e-4, atol=1e-6)
