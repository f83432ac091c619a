"""scikit-learn minimizes |y - Xw - b|^2 / (2n) + alpha |w|_1: half of ours, so alpha = strength / 2.

With weighting by examples F is the mean over all rows, as in scikit-learn. With 40 features and 20 rows the minimum
of F is not unique without psi.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fco_cli.algorithms import Varying
from fco_cli.algorithms.baselines import Centralized, Optimum
from fco_cli.algorithms.rounds import Costs
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import stack_numbers
from fco_cli.problem.mirror_maps import all_mirrors
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.smoothness import automatic_rate_of_mean

SIZES = (7, 4, 9)


def solve(problem, **options):
    psi = problem.regularizer.numbers
    solver = Optimum(**options)
    optimum = solver.bind(problem, Varying(np.ones(1), np.ones(1), psi, solver.numbers))
    w = optimum.output(optimum.round(optimum.initial_state(np.zeros((1, problem.layout.size)))).state)
    residual = problem.kkt_residual(w, problem.risk(w).gradient, psi)[0]
    return w[0], residual


@pytest.mark.parametrize("strength", [0.05, 0.5])
@pytest.mark.parametrize("features", [6, 40])
def test_optimum_is_scikit_learns_lasso(make_problem, regularizer, strength, features):
    """scikit-learn minimizes |y - Xw - b|^2 / (2n) + alpha |w|_1: half of ours, so alpha = strength / 2.

    With weighting by examples F is the mean over all rows, as in scikit-learn. With 40 features and 20 rows the minimum
    of F is not unique without psi.
    """
    from sklearn.linear_model import Lasso

    problem = make_problem(regularizer("l1", strength=strength), features=features, weighting="examples")
    w, residual = solve(problem)
    theirs = Lasso(alpha=strength / 2, tol=1e-14, max_iter=1_000_000).fit(problem.data.x, problem.data.y)
    np.testing.assert_allclose(w[:-1], theirs.coef_, atol=1e-8)
    np.testing.assert_allclose(w[-1], theirs.intercept_, atol=1e-8)
    assert residual < 1e-8


def test_nuclear_optimum_is_cvxpys(make_problem, regularizer):
    import cvxpy as cp

    problem = make_problem(regularizer("nuclear", strength=0.4), features=12, weights_shape=(3, 4))
    w, residual = solve(problem)
    kernel, bias = cp.Variable((3, 4)), cp.Variable()
    risk = 0
    for m, weight in enumerate(problem.weights):
        data = problem.data.client(m)
        risk += weight * cp.sum_squares(data.x @ cp.vec(kernel, order="C") + bias - data.y) / len(data.y)
    cp.Problem(cp.Minimize(risk + 0.4 * cp.normNuc(kernel))).solve()
    np.testing.assert_allclose(w[:-1].reshape(3, 4), kernel.value, atol=1e-4)
    ours = problem.risk(w[None]).value[0] + problem.psi(w[None], problem.regularizer.numbers)[0]
    assert ours <= risk.value + 0.4 * np.linalg.norm(kernel.value, "nuc") + 1e-9
    assert residual < 1e-8


@pytest.mark.parametrize("psi", ["l2_squared", "l1_ball", "elastic_net"])
def test_optimum_reaches_its_certificate(make_problem, regularizer, psi):
    assert solve(make_problem(regularizer(psi, radius=0.5)))[1] < 1e-8


def test_optimum_of_a_logistic_problem(make_problem, regularizer):
    """Against scikit-learn, which minimizes the sum of the losses + |w|_1 / C."""
    from sklearn.linear_model import LogisticRegression

    problem = make_problem(regularizer("l1", strength=0.05), loss="logistic", weighting="examples")
    w, residual = solve(problem)
    n = len(problem.data.y)
    theirs = LogisticRegression(
        C=1 / (0.05 * n), l1_ratio=1, solver="saga", tol=1e-12, max_iter=1_000_000, random_state=0
    ).fit(problem.data.x, problem.data.y)
    np.testing.assert_allclose(w, np.append(theirs.coef_[0], theirs.intercept_), atol=1e-6)
    assert residual < 1e-8


def test_optimum_where_the_value_of_f_has_few_digits(make_problem, regularizer):
    """With labels around 1e6 differences of F near the optimum are below rounding error; gradients are not."""
    problem = make_problem(regularizer("l1", strength=0.5))
    data = problem.data
    far = ClientData(data.x, 1e3 * data.y + 1e6, data.offsets)
    residual = solve(Problem(far, problem.model, problem.loss, regularizer=problem.regularizer), max_iterations=2000)[1]
    assert residual < 1e-3  # 1e-10 of the gradient at the start


def test_optimum_without_certificate_raises_an_error(make_problem, regularizer):
    with pytest.raises(UserError, match=r"KKT residual .* after 3 iterations.*algo\.max_iterations"):
        solve(make_problem(regularizer("l1", strength=0.1)), max_iterations=3)


def test_optimum_solves_every_job_for_its_own_strength(make_problem, regularizer):
    problem = make_problem(regularizer("l1"))
    strengths = [0.05, 0.5, 50.0]
    psi = stack_numbers(regularizer("l1", strength=strength) for strength in strengths)
    optimum = Optimum().bind(problem, Varying(np.ones(3), np.ones(3), psi, stack_numbers([Optimum()] * 3)))
    models = optimum.output(optimum.round(optimum.initial_state(np.zeros((3, problem.layout.size)))).state)
    assert np.count_nonzero(models[2][:-1]) == 0
    for model, strength in zip(models, strengths, strict=True):
        alone = solve(make_problem(regularizer("l1", strength=strength)))[0]
        np.testing.assert_array_equal(model, alone)


def test_centralized_is_proximal_gradient(make_problem, make_algorithm, regularizer, l1_prox):
    problem = make_problem(regularizer("l1", strength=0.3))
    algorithm = make_algorithm("centralized", problem, 0.1)
    state, w = algorithm.initial_state(np.zeros((1, problem.layout.size))), np.zeros(problem.layout.size)
    for _ in range(5):
        state = algorithm.round(state).state
        w = l1_prox(0.3)(w - 0.1 * problem.risk(w[None]).gradient[0], 0.1)
        np.testing.assert_allclose(algorithm.output(state)[0], w, rtol=1e-13)


def test_centralized_in_batches(make_problem, make_algorithm, make_hparams, regularizer, l1_prox):
    """A round is one epoch of proximal steps over the pooled rows in random order."""
    problem = make_problem(regularizer("l1", strength=0.3), weighting="examples")
    algorithm, data = make_algorithm("centralized", problem, 0.05, batch_size=6), problem.data
    sampler = Sampler(np.array([20]), make_hparams(batch_size=6, clients_per_round=1), 0)
    state, w = algorithm.initial_state(np.zeros((1, problem.layout.size))), np.zeros(problem.layout.size)
    for epoch in range(3):
        cohort = sampler.cohort(epoch)
        assert np.diff(cohort.edges).tolist() == [6, 6, 6, 2]
        for low, high in pairwise(cohort.edges):
            some = cohort.order[low:high]
            rows = np.column_stack([data.x[some], np.ones(len(some))])
            w = l1_prox(0.3)(w - 0.05 * 2 * rows.T @ (rows @ w - data.y[some]) / len(some), 0.05)
        state = algorithm.round(state, cohort).state
        np.testing.assert_allclose(algorithm.output(state)[0], w, rtol=1e-12)
    assert algorithm.costs(cohort) == Costs(prox_calls=4, gradients=20)


def test_pooled_batches_require_weighting_by_examples(make_problem, make_algorithm):
    """With unequal clients and uniform weights, pooled batches would not minimize the reported objective."""
    with pytest.raises(UserError, match=r"hparams\.weighting: got 'uniform', must be examples"):
        make_algorithm("centralized", make_problem(), batch_size=6)
    make_algorithm("centralized", make_problem(sizes=(5, 5)), batch_size=6)
    with pytest.raises(UserError, match=r"algo\.batch_size: got -1, must be a whole number >= 1, or 0"):
        Centralized(batch_size=-1)


def test_local_is_centralized_on_every_client(make_problem, make_algorithm, regularizer):
    problem = make_problem(regularizer("l1", strength=0.3))
    local = make_algorithm("local", problem, [0.1, 0.02])
    state = local.initial_state(np.zeros((2, problem.layout.size)))
    for _ in range(3):
        state = local.round(state).state
    assert local.output(state).shape == (2, 3, problem.layout.size)
    for m in range(3):
        own = Problem(problem.data.client(m), problem.model, problem.loss, regularizer=problem.regularizer)
        centralized = make_algorithm("centralized", own, [0.1, 0.02])
        alone = centralized.initial_state(np.zeros((2, problem.layout.size)))
        for _ in range(3):
            alone = centralized.round(alone).state
        np.testing.assert_allclose(local.output(state)[:, m], centralized.output(alone), rtol=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize(("loss", "psi"), [("squared", "l1"), ("logistic", "l1_ball"), ("squared", "group_lasso")])
def test_fista_converges_to_the_optimum_for_unequal_clients(
    make_problem, regularizer, make_algorithm, make_hparams, cohorts_of, drive, optimum_of, weighting, loss, psi
):
    """With client_lr=auto; the batch size has no effect, because clients take full gradients."""
    chosen = regularizer(psi, strength=0.1, group_size=3)
    problem = make_problem(chosen, loss, sizes=SIZES, weighting=weighting)
    algorithm = make_algorithm("fista", problem, automatic_rate_of_mean(problem, 0))
    ends = []
    for batch in (2, 100):
        hparams = make_hparams(clients_per_round="all", batch_size=batch, weighting=weighting)
        ends.append(drive(algorithm, cohorts_of(problem, hparams, 300))[0][-1][0])
    np.testing.assert_array_equal(*ends)
    np.testing.assert_allclose(ends[0], optimum_of(problem), atol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_automatic_rate_is_that_of_the_mean_loss(make_problem, loss):
    problem = make_problem(loss=loss, weighting="examples")
    x = np.column_stack([problem.data.x, np.ones(len(problem.data.y))])
    curvature = np.linalg.eigvalsh(x.T @ x / len(x))[-1] * {"squared": 2, "logistic": 0.25}[loss]
    assert 0.9 / curvature < automatic_rate_of_mean(problem, 0) < 1 / curvature


def test_fista_requires_full_participation_and_the_euclidean_map(make_problem, regularizer, make_algorithm):
    problem = make_problem(regularizer("l1"))
    with pytest.raises(UserError, match=r"^hparams.clients_per_round: got 2, must be all 3 clients"):
        make_algorithm("fista", problem).check_participation(2, 3)
    with pytest.raises(UserError, match=r"^mirror: got 'entropy', must be euclidean"):
        make_algorithm("fista", problem).check_pair(problem.regularizer, all_mirrors()["entropy"]())
