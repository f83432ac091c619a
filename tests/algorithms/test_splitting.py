"""Tests of FedDR, FedADMM and FedSplit against their papers' formulations, and of their fixed point."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import PNorm
from fco_cli.simulation.memory import ProcessMemory

FAMILY = {"feddr": 1.95, "fedadmm": 1.0, "fedsplit": 2.0}
SIZES = (6, 3, 8, 2)  # K differs
RATE, IN_STEPS = 0.05, 3.0
ETA = RATE * IN_STEPS


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=0.3), sizes=SIZES, features=3, weighting="examples")


def soft(z, threshold):
    """Return the prox of the l1 norm, bias excluded."""
    return np.append(np.sign(z[:-1]) * np.maximum(np.abs(z[:-1]) - threshold, 0), z[-1])


def gradient(data, m, w, rows=slice(None)):
    own = data.client(m)
    x, y = own.x[rows], own.y[rows]
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


def solve(data, cohort, i, x, y, eta=ETA):
    """Take gradient steps of size 1 / (1/eta_c + 1/eta) on F_m + |x - y|^2 / (2 eta) from x."""
    for low, high in pairwise(cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]):
        g = gradient(data, cohort.clients[i], x, cohort.order[low:high])
        x = x - (g + (x - y) / eta) / (1 / RATE + 1 / eta)
    return x


def as_feddr(problem, cohorts, alpha, strength=0.3, warm=True):
    """Return the models of the listing without the server's block; local solves start at x_m if `warm`, else at y_m."""
    data, p = problem.data, problem.weights
    x, y = np.zeros((data.clients, 4)), np.zeros((data.clients, 4))
    w, models = np.zeros(4), []
    for cohort in cohorts:
        for i, m in enumerate(cohort.clients):
            y[m] = y[m] + alpha * (w - x[m])
            x[m] = solve(data, cohort, i, x[m] if warm else y[m], y[m])
        w = soft(p @ (2 * x - y), ETA * strength)
        models.append(w)
    return np.array(models)


def as_fedadmm(problem, cohorts, strength=0.3):
    """Return the models by the augmented Lagrangian F_m(x) + <lambda, x - w> + |x - w|^2 / (2 eta)."""
    data, p = problem.data, problem.weights
    x, multipliers, up = (np.zeros((data.clients, 4)) for _ in range(3))
    w, models = np.zeros(4), []
    for cohort in cohorts:
        for i, m in enumerate(cohort.clients):
            x[m] = solve(data, cohort, i, x[m], w - ETA * multipliers[m])
            multipliers[m] = multipliers[m] + (x[m] - w) / ETA
            up[m] = x[m] + ETA * multipliers[m]
        w = soft(p @ up, ETA * strength)
        models.append(w)
    return np.array(models)


def as_fedsplit(problem, cohorts, strength=0.3):
    """Return the models by reflections of z_m, as in Fed-PLT."""
    data, p = problem.data, problem.weights
    x, z = np.zeros((data.clients, 4)), np.zeros((data.clients, 4))
    w, models = np.zeros(4), []
    for cohort in cohorts:
        for i, m in enumerate(cohort.clients):
            x[m] = solve(data, cohort, i, x[m], 2 * w - z[m])
            z[m] = z[m] + 2 * (x[m] - w)
        w = soft(p @ z, ETA * strength)
        models.append(w)
    return np.array(models)


def as_feddyn(problem, cohorts):
    """Return the models of FedDyn with alpha = 1 / eta, full participation and no psi."""
    data, p = problem.data, problem.weights
    x, g = np.zeros((data.clients, 4)), np.zeros((data.clients, 4))
    w, h, models = np.zeros(4), np.zeros(4), []
    for cohort in cohorts:
        for i, m in enumerate(cohort.clients):
            x[m] = solve(data, cohort, i, x[m], w + ETA * g[m])
        g = g - (x - w) / ETA
        h = h - p @ (x - w) / ETA
        w = p @ x - ETA * h
        models.append(w)
    return np.array(models)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("sampled", [2, 4])
@pytest.mark.parametrize("name", FAMILY)
def test_against_the_papers_own_variables(
    name, sampled, weighting, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive
):
    """Small batches, two epochs, partial and full participation."""
    problem = make_problem(regularizer("l1", strength=0.3), sizes=SIZES, features=3, weighting=weighting)
    hparams = make_hparams(clients_per_round=sampled, batch_size=4, local_epochs=2, weighting=weighting)
    cohorts = cohorts_of(problem, hparams, 6)
    models, _, _ = drive(make_algorithm(name, problem, RATE, eta_in_steps=IN_STEPS), cohorts)
    models = np.array(models)[:, 0]
    np.testing.assert_allclose(models, as_feddr(problem, cohorts, FAMILY[name]), rtol=1e-12, atol=1e-13)
    if name == "fedadmm":
        np.testing.assert_allclose(models, as_fedadmm(problem, cohorts), rtol=1e-12, atol=1e-12)
    if name == "fedsplit":
        np.testing.assert_allclose(models, as_fedsplit(problem, cohorts), rtol=1e-12, atol=1e-12)


def test_without_psi_fedadmm_is_feddyn(make_problem, make_algorithm, regularizer, drive, whole_batches):
    problem = make_problem(regularizer("none"), sizes=SIZES, features=3, weighting="examples")
    cohorts = whole_batches(problem, 4, 6)
    models, _, _ = drive(make_algorithm("fedadmm", problem, RATE, eta_in_steps=IN_STEPS), cohorts)
    np.testing.assert_allclose(np.array(models)[:, 0], as_feddyn(problem, cohorts), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILY)
def test_one_client_with_exact_solves_is_douglas_rachford(
    name, make_problem, make_algorithm, regularizer, drive, whole_batches
):
    """u = prox_{eta F}(y), w = prox_{eta psi}(2 u - y), y <- y + alpha (w - u), from y = w_0."""
    problem = make_problem(regularizer("l1", strength=0.3), sizes=(6,), features=2)
    models, _, _ = drive(make_algorithm(name, problem, RATE, eta_in_steps=1.0), whole_batches(problem, 1, 4, epochs=25))
    own = problem.data.client(0)
    a = np.hstack([own.x, np.ones((6, 1))])
    hessian, linear = 2 * a.T @ a / 6, 2 * a.T @ own.y / 6
    y = np.zeros(3)
    w = u = np.zeros(3)
    for model in models:
        y = y + FAMILY[name] * (w - u)
        u = np.linalg.solve(hessian + np.eye(3) / RATE, linear + y / RATE)
        w = soft(2 * u - y, RATE * 0.3)
        np.testing.assert_allclose(model[0], w, rtol=1e-9, atol=1e-11)


# Fixed point and convergence.


@pytest.mark.parametrize("name", FAMILY)
def test_the_optimum_is_a_fixed_point(name, problem, make_algorithm, optimum_of, drive, whole_batches):
    """With x_m = w*, y_m = w* + eta grad F_m(w*), for any cohort and K_m."""
    optimum = optimum_of(problem)
    slopes = np.array([gradient(problem.data, m, optimum) for m in range(4)])
    assert np.abs(slopes).max() > 0.1  # clients disagree
    memory = ProcessMemory(np.zeros((2, 1, 4)))
    memory.rows = {m: np.stack([optimum + ETA * slopes[m], optimum])[:, None] for m in range(4)}
    state = {"w": optimum[None], "mean": (optimum - ETA * problem.weights @ slopes)[None]}
    algorithm = make_algorithm(name, problem, RATE, eta_in_steps=IN_STEPS)
    _, state, memory = drive(algorithm, whole_batches(problem, 2, 6), state, memory)
    np.testing.assert_allclose(state["w"][0], optimum, rtol=0, atol=1e-11)
    np.testing.assert_allclose(memory.read(np.arange(4))[:, 1, 0], np.tile(optimum, (4, 1)), rtol=0, atol=1e-11)


def test_local_solves_need_a_warm_start(make_problem, regularizer, whole_batches, kkt):
    """Local solves that start at y_m leave an error."""
    problem = make_problem(regularizer("l1", strength=0.1), sizes=SIZES, features=3, weighting="examples", seed=1)
    cohorts = whole_batches(problem, 4, 200)
    warm, cold = (as_feddr(problem, cohorts, 1.0, 0.1, warm)[-1:] for warm in (True, False))
    assert kkt(problem, warm) < 1e-7
    assert kkt(problem, cold) > 1e-2


@pytest.mark.parametrize("name", FAMILY)
def test_the_mean_is_that_of_all_clients(name, problem, make_algorithm, drive, whole_batches):
    """mean = sum_m p_m (2 x_m - y_m), including clients that have not participated."""
    algorithm = make_algorithm(name, problem, RATE, eta_in_steps=IN_STEPS)
    start = np.array([[0.5, -1.0, 2.0, 0.3]])
    state, memory = algorithm.initial_state(start), ProcessMemory(algorithm.initial_client_arrays(start))
    for cohort in [None, *whole_batches(problem, 2, 5)]:
        if cohort is not None:
            _, state, memory = drive(algorithm, [cohort], state, memory)
        y, x = memory.read(np.arange(4))[:, :, 0].swapaxes(0, 1)
        np.testing.assert_allclose(state["mean"][0], problem.weights @ (2 * x - y), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(state["w"][0], soft(state["mean"][0], ETA * 0.3), rtol=1e-13)


def test_a_message_that_is_not_finite_is_ignored(problem, make_algorithm, drive, whole_batches):
    cohorts = whole_batches(problem, 4, 3)
    broken = replace(problem, training=replace(problem.data, x=problem.data.x.copy()))
    broken.data.x[problem.data.offsets[1]] = np.nan
    _, state, memory = drive(make_algorithm("feddr", problem, RATE), cohorts[:2])
    before = memory.read(np.arange(4))
    _, state, memory = drive(make_algorithm("feddr", broken, RATE), cohorts[2:], state, memory)
    y, x = memory.read(np.arange(4))[:, :, 0].swapaxes(0, 1)
    np.testing.assert_array_equal(memory.read(np.array([1]))[0], before[1])
    np.testing.assert_allclose(state["mean"][0], problem.weights @ (2 * x - y), rtol=1e-12, atol=1e-13)


# Client models, costs and invalid input.


def test_client_models_are_x(problem, make_algorithm, whole_batches):
    algorithm, (cohort,) = make_algorithm("feddr", problem, RATE), whole_batches(problem, 2, 1)
    w = np.ones((1, 4))
    made = algorithm.round(
        state := algorithm.initial_state(w), cohort, np.stack([algorithm.initial_client_arrays(w)] * 2)
    )
    models = algorithm.client_models(state, made, cohort)
    np.testing.assert_array_equal(models[:2], made.memory[:, 1])
    np.testing.assert_allclose(models[2], np.average(made.memory[:, 1], axis=0, weights=cohort.weights))
    assert algorithm.costs(cohort).prox_calls == 1


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("feddr", {"alpha": 2.0}, r"^algo\.alpha: got 2\.0, must be above 0, below 2 \(2 is fedsplit\)$"),
        ("feddr", {"alpha": 0.0}, r"^algo\.alpha: got 0\.0, must be above 0, below 2 \(2 is fedsplit\)$"),
        ("fedadmm", {"eta_in_steps": 0.0}, r"^algo\.eta_in_steps: got 0\.0, must be a number > 0$"),
        ("fedsplit", {"eta_in_steps": np.inf}, r"^algo\.eta_in_steps: got inf, must be a number > 0$"),
    ],
)
def test_bad_options(name, options, line, problem, make_algorithm):
    with pytest.raises(UserError, match=line):
        make_algorithm(name, problem, **options)


@pytest.mark.parametrize("name", FAMILY)
def test_other_maps_are_rejected(name, problem, make_algorithm):
    line = f"^mirror: got 'p_norm', must be euclidean: {name} supports no other mirror map$"
    with pytest.raises(UserError, match=line):
        make_algorithm(name, replace(problem, mirror=PNorm(power=1.5)))
