from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.numbers import stack_numbers

STRENGTHS = (1.0, 0.5, 0.0)


@pytest.fixture(params=["l1", "l2_ball"])
def case(request, make_problem, regularizer):
    """A problem, three models of it, F's gradients there and a psi for each job."""
    problem = make_problem(regularizer(request.param), features=5)
    w = np.random.default_rng(0).standard_normal((3, problem.layout.size))
    if request.param == "l1":
        numbers = stack_numbers([regularizer("l1", strength=strength) for strength in STRENGTHS])
    else:
        numbers = np.repeat(problem.regularizer.numbers, 3)
    return problem, w, problem.risk(w).gradient, numbers


def test_psi_and_the_way_to_the_prox(case):
    """psi with each job's own strength and without the bias; the residual by NumPy."""
    problem, w, gradient, numbers = case
    psi, residual = problem.optimality(w, gradient, numbers)
    strengths = STRENGTHS if problem.regularizer.name == "l1" else np.zeros(3)
    np.testing.assert_allclose(psi, strengths * np.abs(w[:, :-1]).sum(axis=1), rtol=1e-14)
    way = w - problem.prox(w - gradient, np.ones(3), numbers)
    np.testing.assert_allclose(residual, np.linalg.norm(way, axis=1), rtol=1e-14)


@pytest.mark.machine_code
def test_a_job_has_the_same_bits_alone(case):
    problem, w, gradient, numbers = case
    together = problem.optimality(w, gradient, numbers)
    for j in range(3):
        alone = problem.optimality(w[[j]], gradient[[j]], numbers[[j]])
        assert [values[0] for values in alone] == [values[j] for values in together]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(case, wrong):
    problem, w, gradient, numbers = case
    w[1, 2] = wrong
    residual = problem.optimality(w, gradient, numbers).residual
    assert np.isfinite(residual).tolist() == [True, False, True]
