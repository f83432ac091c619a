from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.layout import stack_numbers


def test_kkt_residual_is_zero_at_the_optimum_only(make_problem, regularizer):
    """With one feature, min (x w + b - y)^2 + lambda |w| has a closed-form solution."""
    problem = make_problem(regularizer("l1", strength=0.6), features=1, sizes=(4, 4))
    x, y = problem.data.x[:, 0], problem.data.y
    # With the optimal bias, F(w) = var(x) w^2 - 2 cov(x, y) w + var(y): soft-threshold the least squares slope.
    covariance = np.mean((x - x.mean()) * (y - y.mean()))
    slope = np.sign(covariance) * max(abs(covariance) - 0.3, 0) / x.var()
    w = np.array([[slope, y.mean() - slope * x.mean()]])
    numbers = problem.regularizer.numbers
    models = w + np.array([[[0, 0]], [[0.1, 0]], [[0, 0.1]]])
    residuals = [problem.kkt_residual(v, problem.risk(v).gradient, numbers)[0] for v in models]
    assert residuals[0] < 1e-14
    assert min(residuals[1:]) > 1e-3


def test_kkt_residual_without_psi_is_the_gradient(make_problem):
    problem = make_problem()
    w = np.random.default_rng(0).standard_normal((3, problem.layout.size))
    gradient = problem.risk(w).gradient
    np.testing.assert_allclose(
        problem.kkt_residual(w, gradient, np.repeat(problem.regularizer.numbers, 3)),
        np.linalg.norm(gradient, axis=1),
        rtol=1e-12,
    )


def test_kkt_residuals_do_not_depend_on_the_chunk_size(make_problem, regularizer, monkeypatch):
    """Each job has its own strength."""
    problem = make_problem(regularizer("l1", strength=0.6))
    numbers = stack_numbers([regularizer("l1", strength=strength) for strength in (0.1, 0.2, 0.4, 0.8, 1.6)])
    w = np.random.default_rng(0).standard_normal((5, problem.layout.size))
    gradient = problem.risk(w).gradient
    alone = [problem.kkt_residual(w[[j]], gradient[[j]], numbers[[j]])[0] for j in range(5)]
    for numbers_in_cache in (1, 10**6):
        monkeypatch.setattr("fco_cli.problem.problem.IN_CACHE", numbers_in_cache)
        assert problem.kkt_residual(w, gradient, numbers).tolist() == alone


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", [1 / 3] * 3), ("examples", [0.35, 0.2, 0.45])])
def test_weights(make_problem, weighting, expected):
    np.testing.assert_allclose(make_problem(weighting=weighting).weights, expected)


def test_psi_has_a_strength_per_job(make_problem, regularizer):
    problem = make_problem(regularizer("l1"), features=2)
    w = np.array([[1.0, -2, 50], [1.0, -2, 50]])
    numbers = stack_numbers([regularizer("l1", strength=1.0), regularizer("l1", strength=0.5)])
    np.testing.assert_allclose(problem.psi(w, numbers), [3, 1.5])
