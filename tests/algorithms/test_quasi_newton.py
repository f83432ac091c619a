"""Tests of the quasi-Newton method: its matrix, the minimizer of its model, and its number of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms.quasi_newton import Metric
from fco_cli.errors import UserError
from fco_cli.problem.quadratic_solver import minimize_quadratic


@pytest.fixture
def metric():
    """BFGS matrix of five pairs of a quadratic function of seven weights, with these pairs."""
    random = np.random.default_rng(0)
    root = random.standard_normal((7, 7)) * np.geomspace(0.1, 3, 7)
    steps = random.standard_normal((5, 7))
    return Metric.of_pairs(steps, steps @ root.T @ root), steps, steps @ root.T @ root


def test_the_matrix_is_that_of_the_bfgs_updates(metric):
    own, steps, changes = metric
    expected = np.linalg.norm(changes[-1]) / np.linalg.norm(steps[-1]) * np.eye(7)
    for s, y in zip(steps, changes, strict=True):
        expected += np.outer(y, y) / (y @ s) - np.outer(expected @ s, expected @ s) / (s @ expected @ s)
    matrix = np.array([own.times(unit) for unit in np.eye(7)])
    np.testing.assert_allclose(matrix, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(own.times(steps[-1]), changes[-1], rtol=1e-10, atol=1e-10)  # secant equation
    assert own.largest_eigenvalue == pytest.approx(np.linalg.eigvalsh(expected)[-1], rel=1e-10)


@pytest.mark.parametrize("psi", ["none", "l1", "l1_ball", "l2_norm", "slope", "non_negative"])
def test_the_query_minimizes_the_model(psi, metric, make_problem, make_algorithm, regularizer):
    """The solver of dense quadratic models gives the same minimizer."""
    problem, random = make_problem(regularizer(psi)), np.random.default_rng(1)
    algorithm = make_algorithm("quasi_newton", problem)
    w = problem.initial_models(problem.regularizer.numbers, random.standard_normal((1, 7)))
    gradient = 3 * random.standard_normal((1, 7))
    matrix = np.array([metric[0].times(unit) for unit in np.eye(7)])
    expected = minimize_quadratic(problem, problem.regularizer.numbers, matrix[None], gradient, w)
    np.testing.assert_allclose(algorithm._minimized(w, gradient, [metric[0]]), expected, atol=1e-6)


def rounds_to(name, problem, rate, make_algorithm, full_cohort, residual=1e-8, most=3000):
    """Return the number of rounds to a KKT residual."""
    algorithm = make_algorithm(name, problem, rate)
    state = algorithm.initial_state(np.zeros((1, problem.layout.size)))
    for done in range(1, most + 1):
        state = algorithm.round(state, full_cohort(problem)).state
        w = algorithm.output(state)
        if problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0] < residual:
            return done
    return np.inf


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_ill_conditioned_problems_take_few_rounds(loss, make_problem, make_algorithm, full_cohort, regularizer):
    problem = make_problem(regularizer("l1", strength=0.01), loss=loss, sizes=(40, 60, 50))
    problem.data.x[:] *= np.geomspace(0.05, 1, 6)
    largest = 2 * np.linalg.eigvalsh(problem.data.x.T @ problem.data.x / len(problem.data.x))[-1]
    own, fista = (
        rounds_to(name, problem, 0.5 / largest, make_algorithm, full_cohort) for name in ("quasi_newton", "fista")
    )
    assert 3 * own < fista < np.inf


def test_linear_pieces_of_the_loss_have_no_curvature_and_are_crossed(make_problem, make_algorithm, full_cohort):
    """The gradient of the Huber loss far from the labels is constant: no pair is stored, and steps grow."""
    problem = make_problem(loss="huber", sizes=(7, 9, 8))
    problem.data.y[:] += 1e4
    assert rounds_to("quasi_newton", problem, 1.0, make_algorithm, full_cohort, most=300) < 300


def test_what_is_not_convex_is_refused(make_problem, make_algorithm, regularizer):
    with pytest.raises(UserError, match=r"^regularizer: got 'l0', must be convex: [^\n]*$"):
        make_algorithm("quasi_newton", make_problem(regularizer("l0")))
    with pytest.raises(UserError, match=r"^algo\.memory: got 0, must be a whole number >= 1$"):
        make_algorithm("quasi_newton", make_problem(), memory=0)
