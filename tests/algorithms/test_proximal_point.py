"""Tests of SPPM-AS, S-DANE and FedRed against listings in NumPy, of their fixed points and of the proximal point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms.transforms import all_transforms
from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.memory import ProcessMemory

SIZES = (7, 4, 9)
STRENGTH, RATE, IN_STEPS = 0.3, 0.04, 3.0
ETA = RATE * IN_STEPS
STEP = RATE * ETA / (RATE + ETA)  # 1 / (1 / eta_c + 1 / eta)


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=3, weighting="examples")


@pytest.fixture
def draw(make_hparams):
    """Return cohorts that stay for the rounds of the algorithm; batches of 3 rows, so that K_m differs."""

    def cohorts(algorithm, rounds, sampled=3, **changes):
        hparams = make_hparams(clients_per_round=sampled, weighting="examples", **changes)
        kept = algorithm.rounds_per_cohort
        sampler = Sampler(algorithm.problem.data.sizes, hparams, 0, rounds_per_cohort=kept)
        return [sampler.cohort(r) for r in range(rounds)]

    return cohorts


def mean_of(problem, cohort, vectors):
    return np.average(vectors, axis=0, weights=problem.weights[cohort.clients])


def local_steps(problem, cohort, i, x, v, shift, prox, client_gradient):
    """Return x after K steps x <- prox(x - STEP (g - shift + (x - v) / ETA))."""
    m = cohort.clients[i]
    for b in range(cohort.first[i], cohort.first[i + 1]):
        g = client_gradient(problem, m, x, cohort.order[cohort.edges[b] : cohort.edges[b + 1]])
        x = prox(x - STEP * (g - shift + (x - v) / ETA), STEP)
    return x


@pytest.mark.parametrize("sampled", [2, 3])
def test_sppm_as_against_a_listing(sampled, problem, draw, make_algorithm, drive, l1_prox, client_gradient):
    algorithm = make_algorithm("sppm_as", problem, RATE, eta_in_steps=IN_STEPS, inner_rounds=3)
    cohorts, prox = draw(algorithm, 9, sampled), l1_prox(STRENGTH)
    x, expected = np.zeros(4), []
    for block in range(3):
        cohort, w = cohorts[3 * block], x
        for other in cohorts[3 * block : 3 * block + 3]:
            np.testing.assert_array_equal(other.clients, cohort.clients)
            g = mean_of(problem, cohort, [client_gradient(problem, m, w) for m in cohort.clients])
            w = prox(w - STEP * (g + (w - x) / ETA), STEP)
            expected.append(w)
        x = w
    models = np.array(drive(algorithm, cohorts)[0])[:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-12, atol=1e-13)
    assert len({tuple(cohort.clients) for cohort in cohorts}) > 1


@pytest.mark.parametrize("sampled", [2, 3])
def test_s_dane_against_a_listing(sampled, problem, draw, make_algorithm, drive, l1_prox, client_gradient):
    algorithm = make_algorithm("s_dane", problem, RATE, eta_in_steps=IN_STEPS)
    cohorts, prox = draw(algorithm, 10, sampled), l1_prox(STRENGTH)
    v, expected = np.zeros(4), []
    for first, cohort in zip(cohorts[::2], cohorts[1::2], strict=True):
        np.testing.assert_array_equal(first.clients, cohort.clients)
        own = [client_gradient(problem, m, v) for m in cohort.clients]
        mean = mean_of(problem, cohort, own)
        ends = [
            local_steps(problem, cohort, i, v, v, own[i] - mean, prox, client_gradient)
            for i in range(len(cohort.clients))
        ]
        expected.append(v)
        g = mean_of(
            problem, cohort, [client_gradient(problem, m, x) for m, x in zip(cohort.clients, ends, strict=True)]
        )
        v = prox(v - ETA * g, ETA)
        expected.append(v)
    models = np.array(drive(algorithm, cohorts)[0])[:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-12, atol=1e-13)


def test_fedred_against_a_listing(problem, draw, make_algorithm, drive, l1_prox, client_gradient):
    algorithm = make_algorithm("fedred", problem, RATE, eta_in_steps=IN_STEPS)
    cohorts, prox = draw(algorithm, 10), l1_prox(STRENGTH)
    v, x, expected = np.zeros(4), np.zeros((3, 4)), []
    for cohort in cohorts[1::2]:
        own = np.array([client_gradient(problem, m, v) for m in range(3)])
        mean = problem.weights @ own
        for i, m in enumerate(cohort.clients):
            x[m] = local_steps(problem, cohort, i, x[m], v, own[m] - mean, prox, client_gradient)
        expected += [v, problem.weights @ x]
        v = expected[-1]
    models = np.array(drive(algorithm, cohorts)[0])[:, 0]
    np.testing.assert_allclose(models, expected, rtol=1e-12, atol=1e-13)


def proximal_points(problem, prox, count, client_gradient):
    """Return iterates x <- argmin_w F(w) + psi(w) + |w - x|^2 / (2 ETA) from 0, to 13 digits."""
    x, points = np.zeros(4), []
    for _ in range(count):
        w = x
        for _ in range(500):
            g = sum(p * client_gradient(problem, m, w) for m, p in enumerate(problem.weights))
            w = prox(w - STEP * (g + (w - x) / ETA), STEP)
        x = w
        points.append(x)
    return np.array(points)


def test_sppm_as_with_all_clients_is_the_proximal_point_method(
    problem, draw, make_algorithm, drive, l1_prox, client_gradient
):
    algorithm = make_algorithm("sppm_as", problem, RATE, eta_in_steps=IN_STEPS, inner_rounds=120)
    models = np.array(drive(algorithm, draw(algorithm, 360))[0])[119::120, 0]
    points = proximal_points(problem, l1_prox(STRENGTH), 3, client_gradient)
    np.testing.assert_allclose(models, points, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["s_dane", "fedred"])
def test_with_one_client_and_exact_solutions_it_is_the_proximal_point_method(
    name, make_problem, regularizer, make_algorithm, drive, whole_batches, l1_prox, client_gradient
):
    problem = make_problem(regularizer("l1", strength=STRENGTH), sizes=(6,), features=3)
    algorithm = make_algorithm(name, problem, RATE, eta_in_steps=IN_STEPS)
    models = np.array(drive(algorithm, whole_batches(problem, 1, 6, epochs=200))[0])[1::2, 0]
    np.testing.assert_allclose(models, proximal_points(problem, l1_prox(STRENGTH), 3, client_gradient), atol=1e-11)


def test_sppm_as_with_one_inner_round_is_proximal_gradient(problem, draw, make_algorithm, drive):
    algorithm = make_algorithm("sppm_as", problem, RATE, eta_in_steps=IN_STEPS, inner_rounds=1)
    models = drive(algorithm, cohorts := draw(algorithm, 6))[0]
    central = drive(make_algorithm("centralized", problem, STEP), cohorts)[0]
    np.testing.assert_allclose(models, central, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["sppm_as", "s_dane", "fedred"])
def test_the_optimum_is_a_fixed_point(name, problem, make_algorithm, optimum_of, whole_batches, drive):
    """With full gradients and all clients."""
    optimum = optimum_of(problem)[None]
    algorithm = make_algorithm(name, problem, RATE)
    memory = ProcessMemory(algorithm.initial_client_arrays(optimum))
    cohorts = whole_batches(problem, 3, 6)
    models = drive(algorithm, cohorts, algorithm.initial_state(optimum), memory)[0]
    np.testing.assert_allclose(models, np.tile(optimum, (6, 1, 1)), rtol=0, atol=1e-11)


def test_with_sampled_clients_the_error_of_sppm_as_grows_with_eta(problem, draw, make_algorithm, drive, optimum_of):
    """From the optimum, the mean squared error rises to a level that depends on eta."""
    optimum, errors = optimum_of(problem), []
    for rate in (RATE, RATE / 10):
        algorithm = make_algorithm("sppm_as", problem, rate, eta_in_steps=1.0, inner_rounds=2)
        state = algorithm.initial_state(optimum[None])
        models = np.array(drive(algorithm, draw(algorithm, 600, 2), state)[0])[-400:, 0]
        errors.append(((models - optimum) ** 2).sum(axis=1).mean())
    assert errors[0] > 1e-3
    assert errors[1] < 0.6 * errors[0]


def test_costs_depend_on_the_phase(problem, draw, make_algorithm):
    rows = sum(SIZES)
    for name, last in (("s_dane", 2), ("fedred", 1)):
        algorithm = make_algorithm(name, problem)
        first, second = draw(algorithm, 2)
        steps, batches = int(second.steps.sum()), len(second.order)
        assert algorithm.costs(first).gradients == rows
        assert algorithm.costs(first).prox_calls == 0
        assert algorithm.costs(second).gradients == batches + last * rows
        assert algorithm.costs(second).prox_calls == steps + (name == "s_dane")
        assert algorithm.costs(first).vectors_up == 3


@pytest.mark.parametrize("name", ["sppm_as", "s_dane", "fedred"])
def test_invalid_settings_are_rejected(name, problem, make_algorithm):
    with pytest.raises(UserError, match=r"^algo\.eta_in_steps: got 0\.0, must be a number > 0$"):
        make_algorithm(name, problem, eta_in_steps=0.0)
    with pytest.raises(UserError, match=f"^mirror: got 'entropy', must be euclidean: {name} supports no other"):
        make_algorithm(name, replace(problem, mirror=Entropy()))
    noisy = make_algorithm(name, problem, transform=all_transforms()["clip_noise"](noise_multiplier=0.0))
    with pytest.raises(UserError, match=rf"^transform: got 'clip_noise', must be [^\n]*{name} keeps a cohort[^\n]*$"):
        noisy.check_transform("uniform")
    if name != "sppm_as":
        sparse = make_algorithm(name, problem, transform=all_transforms()["topk"]())
        with pytest.raises(
            UserError, match=rf"^transform: got 'topk', must be none: {name} sends gradients and[^\n]*$"
        ):
            sparse.check_transform("uniform")


def test_fedred_requires_full_participation(problem, make_algorithm):
    line = r"^hparams.clients_per_round: got 2, must be all 3 clients: fedred requires full participation$"
    with pytest.raises(UserError, match=line):
        make_algorithm("fedred", problem).check_participation(2, 3)


def test_sppm_as_rejects_zero_inner_rounds(problem, make_algorithm):
    with pytest.raises(UserError, match=r"^algo\.inner_rounds: got 0, must be a whole number >= 1$"):
        make_algorithm("sppm_as", problem, inner_rounds=0)
