"""Tests of the one-shot methods: when they are exact, their bias otherwise, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms.one_shot import minimize_locally
from fco_cli.errors import UserError
from fco_cli.problem.problem import Problem

NAMES = ("csl", "dlsa", "debiased_average")
SIZES = (40, 30, 60)


def residual_of(problem: Problem, w) -> float:
    return float(problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0])


@pytest.fixture
def one_round(make_algorithm):
    """Return the model after some rounds from w = 0."""

    def run(name, problem, rounds=1, **options):
        algorithm = make_algorithm(name, problem, **options)
        state = algorithm.initial_state(np.zeros((1, problem.layout.size)))
        for _ in range(rounds):
            state = algorithm.round(state).state
        return algorithm.output(state)

    return run


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
@pytest.mark.parametrize("psi", ["l1", "l2_squared", "none"])
def test_a_client_minimizes_its_own_objective(loss, psi, make_problem, regularizer):
    strength = {} if psi == "none" else {"strength": 0.1}
    problem = make_problem(regularizer(psi, **strength), loss=loss, sizes=(60,))
    linear = np.linspace(-0.02, 0.02, 7)
    w = minimize_locally(problem, problem.regularizer.numbers, linear, np.zeros(7))[None]
    gradient = problem.risk(w).gradient - linear
    assert problem.kkt_residual(w, gradient, problem.regularizer.numbers)[0] < 1e-8


def test_a_minimum_that_is_not_attained_is_detected(make_problem, regularizer):
    problem = make_problem(regularizer("none"), loss="logistic", sizes=(20,))
    problem.data.y[:] = problem.data.x[:, 0] > 0
    assert np.isnan(minimize_locally(problem, problem.regularizer.numbers, np.zeros(7), np.zeros(7))).all()


@pytest.mark.parametrize("name", NAMES)
def test_with_one_client_and_the_squared_loss_they_are_exact(name, make_problem, regularizer, one_round):
    """Except for the average, whose threshold ignores correlations of the features: it is exact without psi."""
    psi = regularizer("none") if name == "debiased_average" else regularizer("l1", strength=0.3)
    problem = make_problem(psi, sizes=(80,))
    options = {"nodewise": 1e-9} if name == "debiased_average" else {}
    assert residual_of(problem, one_round(name, problem, **options)) < 1e-6


def test_dlsa_is_exact_for_the_squared_loss(make_problem, regularizer, one_round):
    problem = make_problem(regularizer("l1", strength=0.3), sizes=SIZES)
    assert residual_of(problem, one_round("dlsa", problem)) < 1e-9


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize(("name", "loss"), [("csl", "squared"), ("dlsa", "logistic"), ("debiased_average", "squared")])
def test_with_several_clients_they_are_biased(name, loss, make_problem, regularizer, one_round):
    """The bias decreases with the number of rows."""
    residuals = []
    for factor in (1, 10):
        problem = make_problem(regularizer("l1", strength=0.05), loss=loss, sizes=tuple(factor * n for n in SIZES))
        residuals.append(residual_of(problem, one_round(name, problem)))
    assert residuals[0] > 1e-3
    assert 1e-6 < residuals[1] < residuals[0] / 1.5


def test_more_rounds_of_csl_reduce_its_error(make_problem, regularizer, one_round):
    problem = make_problem(regularizer("l1", strength=0.02), sizes=(90, 80, 100))
    errors = [residual_of(problem, one_round("csl", problem, rounds)) for rounds in (1, 5)]
    assert errors[1] < errors[0] / 4


def test_a_feature_of_zeros_gets_no_weight(make_problem, regularizer, one_round):
    problem = make_problem(regularizer("l1", strength=0.05), sizes=SIZES)
    problem.data.x[:, 2] = 0
    assert one_round("debiased_average", problem)[0, 2] == 0


def test_what_is_not_supported_is_refused(make_problem, make_algorithm, regularizer):
    with pytest.raises(UserError, match=r"^algo: got 'dlsa', must be another: [^\n]* parameters, 7, [^\n]* 1 has 4$"):
        make_algorithm("dlsa", make_problem(sizes=(8, 4, 9)))
    with pytest.raises(UserError, match=r"^regularizer: got 'l1_ball', must be separable: [^\n]*$"):
        make_algorithm("debiased_average", make_problem(regularizer("l1_ball")))
    for name in NAMES:
        with pytest.raises(UserError, match=r"^regularizer: got 'l0', must be convex: [^\n]*$"):
            make_algorithm(name, make_problem(regularizer("l0"), sizes=SIZES))


def test_costs_are_those_of_the_messages(make_problem, make_algorithm):
    problem, size = make_problem(sizes=SIZES), 7
    csl, dlsa, average = (make_algorithm(name, problem).costs(None) for name in NAMES)
    assert (csl.bytes_up, csl.bytes_down, csl.queries) == (4 * size * 8, 4 * size * 8, 4)
    assert (dlsa.bytes_up, dlsa.bytes_down, dlsa.queries) == (3 * (size + size * (size + 1) // 2) * 8, 0, 3)
    assert (average.bytes_up, average.bytes_down, average.queries) == (3 * 2 * size * 8, 0, 3)


def test_a_job_is_independent_of_its_stack(make_problem, make_algorithm, regularizer):
    problem = make_problem(regularizer("l1", strength=0.3), sizes=SIZES)
    for name in NAMES:
        alone, both = (make_algorithm(name, problem, rates) for rates in (0.1, [0.1, 0.2]))
        models = [
            one.output(one.round(one.initial_state(np.zeros((n, 7)))).state) for n, one in ((1, alone), (2, both))
        ]
        np.testing.assert_array_equal(models[1], np.repeat(models[0], 2, axis=0))


def test_weights_of_clients_are_used(make_problem, regularizer, one_round):
    problem = replace(make_problem(regularizer("l1", strength=0.3), sizes=SIZES), weighting="examples")
    assert residual_of(problem, one_round("dlsa", problem)) < 1e-9
