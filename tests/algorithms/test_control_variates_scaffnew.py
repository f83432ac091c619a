"""Tests of Scaffnew against its listing and of its identities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9)
STRENGTH = 0.3


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=2)


@pytest.fixture
def draw(problem, make_hparams, cohorts_of):
    """Return cohorts of all clients with equal K; batches of 3 give K = 3, 2 and 3 by epochs, rounded mean 3."""

    def cohorts(rounds, coin=False, **changes):
        hparams = make_hparams(clients_per_round=3, **changes)
        return cohorts_of(problem, hparams, rounds, "geometric" if coin else "equal")

    return cohorts


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("coin", [False, True])
def test_against_the_listing(
    coin,
    weighting,
    make_problem,
    regularizer,
    make_hparams,
    cohorts_of,
    make_algorithm,
    drive,
    l1_prox,
    client_gradient,
):
    """Detects: h_m updated after y is set to the new model, so that h_m stays 0."""
    problem = make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=2, weighting=weighting)
    algorithm = make_algorithm("scaffnew", problem, 0.05, 0.3, coin=coin)  # server_lr has no effect
    hparams = make_hparams(clients_per_round=3, weighting=weighting)
    cohorts = cohorts_of(problem, hparams, 8, algorithm.local_step_rule)
    assert (len({int(cohort.steps[0]) for cohort in cohorts}) > 1) == coin
    p, eta, prox = 1 / 3, 0.05, l1_prox(STRENGTH)
    start = np.array([0.3, -0.2, 0.1])
    w, h, expected = start, np.zeros((3, 3)), []
    for cohort in cohorts:
        ends = np.empty((3, 3))
        for i, m in enumerate(cohort.clients):
            y = w.copy()
            for b in range(cohort.first[i], cohort.first[i + 1]):
                rows = cohort.order[cohort.edges[b] : cohort.edges[b + 1]]
                y = y - eta * (client_gradient(problem, m, y, rows) - h[m])
            ends[m] = y
        w = prox(problem.weights @ (ends - eta / p * h), eta / p)
        h = h + p / eta * (w - ends)
        expected.append(w)
    memory = ProcessMemory(algorithm.initial_client_arrays(start[None]))
    models, state, memory = drive(algorithm, cohorts, algorithm.initial_state(start[None]), memory)
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-12, atol=1e-13)
    u = memory.read(np.arange(3))[:, 0, 0]
    np.testing.assert_allclose((state["w"] - u) * p / eta, h, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(state["u"][0], problem.weights @ u, rtol=1e-11, atol=1e-13)
    assert np.abs(h).max() > 0.1


def test_with_k_fixed_the_server_takes_a_proximal_step_along_the_mean_gradient(
    problem, draw, make_algorithm, client_gradient, l1_prox
):
    """For any h_m; moreover h_m+ = mean gradient of client m + (w+ - w) / (eta_c K)."""
    algorithm, (cohort,), random = make_algorithm("scaffnew", problem, 0.05), draw(1), np.random.default_rng(0)
    w, u = random.standard_normal(3), random.standard_normal((3, 3))
    state = {"w": w[None], "u": u.mean(axis=0)[None], "steps": np.ones(1)}
    made = algorithm.round(state, cohort, u[cohort.clients][:, None, None])
    means = np.zeros((3, 3))
    for i, m in enumerate(cohort.clients):
        y = w.copy()
        for b in range(cohort.first[i], cohort.first[i + 1]):
            g = client_gradient(problem, m, y, cohort.order[cohort.edges[b] : cohort.edges[b + 1]])
            y, means[i] = y - 0.05 * (g - (w - u[m]) / 0.15), means[i] + g / 3
    expected = l1_prox(STRENGTH)(w - 0.15 * means.mean(axis=0), 0.15)
    np.testing.assert_allclose(made.state["w"][0], expected, rtol=1e-12, atol=1e-13)
    h = (made.state["w"] - made.memory[:, 0, 0]) / 0.15
    np.testing.assert_allclose(h, means + (expected - w) / 0.15, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("coin", [False, True])
def test_with_one_step_it_is_proximal_gradient(coin, problem, draw, make_algorithm, full_gradients, drive):
    """With p = 1 clients communicate after every step."""
    cohorts = full_gradients(draw(5, coin, batch_size=9), SIZES)
    models = drive(make_algorithm("scaffnew", problem, 0.05, coin=coin), cohorts)[0]
    central = drive(make_algorithm("centralized", problem, 0.05), cohorts)[0]
    np.testing.assert_allclose(models, central, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("coin", [False, True])
def test_the_optimum_is_a_fixed_point(
    coin, problem, draw, make_algorithm, drive, full_gradients, solution, l1_prox, client_gradient
):
    """With h_m = grad F_m(w*); the mean is grad F(w*), which is not 0."""
    optimum, largest = solution(problem, l1_prox(STRENGTH))
    eta = 0.5 / largest
    gradients = np.array([client_gradient(problem, m, optimum) for m in range(3)])
    assert np.abs(gradients.mean(axis=0)).max() > 0.1
    u = optimum - eta * 3 * gradients
    memory = ProcessMemory(np.zeros((1, 1, 3)))
    memory.rows = {m: own[None, None] for m, own in enumerate(u)}
    state = {"w": optimum[None], "u": u.mean(axis=0)[None], "steps": np.full(1, 3.0)}
    models = drive(
        make_algorithm("scaffnew", problem, eta, coin=coin), full_gradients(draw(4, coin), SIZES), state, memory
    )[0]
    np.testing.assert_allclose(models, np.tile(optimum, (4, 1, 1)), rtol=0, atol=1e-13)


def test_a_message_that_is_not_finite_is_ignored(problem, draw, make_algorithm, drive):
    """u_m of its client is unchanged, in memory and in the server's mean."""
    algorithm, cohorts = make_algorithm("scaffnew", problem, 0.05), draw(4)
    _, state, memory = drive(algorithm, cohorts[:3])
    broken = replace(problem, training=replace(problem.data, x=problem.data.x.copy()))
    broken.data.x[problem.data.offsets[1] : problem.data.offsets[2]] = np.nan
    before = memory.read(np.arange(3))
    made = make_algorithm("scaffnew", broken, 0.05).round(state, cohorts[3], memory.read(cohorts[3].clients))
    memory.write(cohorts[3].clients, made.memory, made.arrived)
    after = memory.read(np.arange(3))
    assert made.dropped.tolist() == [1]
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_allclose(made.state["u"][0], after[:, 0, 0].mean(axis=0), rtol=1e-12, atol=1e-13)


def test_invalid_settings_are_rejected(make_problem, make_algorithm):
    with pytest.raises(UserError, match=r"^mirror: got 'entropy', must be euclidean: scaffnew supports no other"):
        make_algorithm("scaffnew", replace(make_problem(), mirror=Entropy()))
    line = r"^hparams.clients_per_round: got 2, must be all 3 clients: scaffnew requires full participation$"
    with pytest.raises(UserError, match=line):
        make_algorithm("scaffnew", make_problem()).check_participation(2, 3)


def test_declarations(problem, draw, make_algorithm):
    algorithm, (cohort,) = make_algorithm("scaffnew", problem), draw(1)
    costs = algorithm.costs(cohort)
    assert (costs.vectors_down, costs.vectors_up, costs.prox_calls) == (3, 3, 1)
    assert not {"server_lr", "normalize_steps"} & algorithm.uses
    made = algorithm.round(algorithm.initial_state(np.zeros((1, 3))), cohort, np.zeros((3, 1, 1, 3)))
    models = algorithm.client_models(algorithm.initial_state(np.zeros((1, 3))), made, cohort)
    np.testing.assert_array_equal(models[:-1], made.memory[:, 0])  # since u_m = w_0 = 0


# Sampled clients.


def sampled_cohorts(problem, make_hparams, steps, rounds, sampled):
    """Return cohorts of full gradients with K = `steps` for every client."""
    hparams = make_hparams(clients_per_round=sampled, batch_size=9, local_epochs=steps, weighting=problem.weighting)
    sampler = Sampler(problem.data.sizes, hparams, 0, "equal", problem.weights)
    return [sampler.cohort(r) for r in range(rounds)]


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_sampled_scaffnew_against_a_listing(
    weighting, make_problem, regularizer, make_hparams, make_algorithm, drive, l1_prox, client_gradient
):
    """A table of u_m of all clients; h_m = (w - u_m) / (eta_c K) of the current model."""
    problem = make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=2, weighting=weighting)
    cohorts, prox = sampled_cohorts(problem, make_hparams, 3, 10, 2), l1_prox(STRENGTH)
    u, w, expected = np.zeros((3, 3)), np.zeros(3), []
    for cohort in cohorts:
        for m in cohort.clients:
            y, h = w.copy(), (w - u[m]) / (0.05 * 3)
            for _ in range(3):
                y = y - 0.05 * (client_gradient(problem, m, y) - h)
            u[m] = y - 0.05 * 3 * h
        w = prox(problem.weights @ u, 0.05 * 3)
        expected.append(w)
    models = drive(make_algorithm("scaffnew_sampled", problem, 0.05), cohorts)[0]
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-11, atol=1e-12)


def test_sampled_scaffnew_with_one_step_is_proximal_miso(
    problem, make_hparams, make_algorithm, drive, l1_prox, client_gradient
):
    """w = prox(mean of (v_m - eta_c grad F_m(v_m))), where v_m is the last model that client m received."""
    cohorts = sampled_cohorts(problem, make_hparams, 1, 12, 1)
    table, w, expected = np.zeros((3, 3)), np.zeros(3), []
    for cohort in cohorts:
        (m,) = cohort.clients
        table[m] = w - 0.05 * client_gradient(problem, m, w)
        w = l1_prox(STRENGTH)(table.mean(axis=0), 0.05)
        expected.append(w)
    models = drive(make_algorithm("scaffnew_sampled", problem, 0.05), cohorts)[0]
    np.testing.assert_allclose(np.array(models)[:, 0], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("coin", [False, True])
def test_with_full_participation_sampled_scaffnew_is_scaffnew(coin, problem, draw, make_algorithm, drive):
    cohorts = draw(6, coin)
    models = [
        drive(make_algorithm(name, problem, 0.05, coin=coin), cohorts)[0] for name in ("scaffnew", "scaffnew_sampled")
    ]
    np.testing.assert_array_equal(*models)


def test_the_published_average_over_a_cohort_is_not_exact(
    problem, make_hparams, make_algorithm, drive, solution, l1_prox, client_gradient
):
    """Scaffnew that averages u_m over the cohort, and keeps h_m of the others, does not converge; this one does."""
    optimum, largest = solution(problem, l1_prox(STRENGTH))
    eta, prox = 0.5 / largest, l1_prox(STRENGTH)
    cohorts = sampled_cohorts(problem, make_hparams, 3, 150, 2)
    w, h = np.zeros(3), np.zeros((3, 3))
    for cohort in cohorts:
        ends = {}
        for m in cohort.clients:
            y = w.copy()
            for _ in range(3):
                y = y - eta * (client_gradient(problem, m, y) - h[m])
            ends[m] = y
        w = prox(np.mean([y - 3 * eta * h[m] for m, y in ends.items()], axis=0), 3 * eta)
        for m, y in ends.items():
            h[m] = h[m] + (w - y) / (3 * eta)
    models = drive(make_algorithm("scaffnew_sampled", problem, eta), cohorts)[0]
    assert np.abs(w - optimum).max() > 0.03
    np.testing.assert_allclose(models[-1][0], optimum, rtol=0, atol=1e-11)


def test_the_optimum_is_a_fixed_point_for_any_cohort(
    problem, make_hparams, make_algorithm, drive, solution, l1_prox, client_gradient
):
    optimum, largest = solution(problem, l1_prox(STRENGTH))
    eta = 0.5 / largest
    u = np.array([optimum - eta * 3 * client_gradient(problem, m, optimum) for m in range(3)])
    memory = ProcessMemory(np.zeros((1, 1, 3)))
    memory.rows = {m: own[None, None] for m, own in enumerate(u)}
    state = {"w": optimum[None], "u": u.mean(axis=0)[None], "steps": np.full(1, 3.0)}
    cohorts = sampled_cohorts(problem, make_hparams, 3, 6, 1)
    models = drive(make_algorithm("scaffnew_sampled", problem, eta), cohorts, state, memory)[0]
    np.testing.assert_allclose(models, np.tile(optimum, (6, 1, 1)), rtol=0, atol=1e-13)
