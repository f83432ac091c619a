"""Tests of Fast-FedDA, C-FedDA and MC-FedDA against the sums of the authors' scripts and against FedDualAvg."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import PNorm
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.sets import prox_l1_in_l1_ball

SIZES = (6, 3, 8, 2)  # K differs
RATE, MU, STRENGTH = 0.05, 0.7, 0.2


@pytest.fixture
def problem(make_problem, regularizer):
    return make_problem(regularizer("l1", strength=STRENGTH), sizes=SIZES, features=3, weighting="examples", seed=1)


def soft(z, threshold):
    """Return the prox of the l1 norm, bias excluded."""
    return np.append(np.sign(z[:-1]) * np.maximum(np.abs(z[:-1]) - threshold, 0), z[-1])


def gradient(data, m, w, rows=slice(None)):
    own = data.client(m)
    x, y = own.x[rows], own.y[rows]
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


def by_sums(problem, cohorts, constant=False, as_coded=False, start=None, strength=STRENGTH):
    """Return the models by the sums G, X and n of the scripts, with gamma = 1 / eta_c. `constant` is C-FedDA.

    `as_coded` also adds the last local iterate of a round to X, at which no gradient is taken.
    """
    data, gamma = problem.data, 1 / RATE
    w_0 = np.zeros(4) if start is None else start
    w, gradients, points, n, models = w_0, np.zeros(4), np.zeros(4), 0.0, []

    def primal(gradients, points, n):
        weight = gamma + n * MU / 2
        return soft((gamma * w_0 + MU / 2 * points - gradients) / weight, n / weight * strength)

    for cohort in cohorts:
        shares = cohort.weights / cohort.weights.sum() * cohort.mean_steps / cohort.steps
        in_gradients = in_points = np.zeros(4)
        for i, m in enumerate(cohort.clients):
            y, g, x, steps = w, gradients, points, cohort.steps[i]
            edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
            for k, (low, high) in enumerate(pairwise(edges), start=1):
                g = g + gradient(data, m, y, cohort.order[low:high])
                x = x + y
                y = primal(g, points + steps * w, n + steps) if constant else primal(g, x, n + k)
            in_gradients = in_gradients + shares[i] * (g - gradients)
            in_points = in_points + shares[i] * ((x + y if as_coded else x) - points)
        n += cohort.mean_steps
        gradients = gradients + in_gradients
        points = points + (cohort.mean_steps * w if constant else in_points)
        w = primal(gradients, points, n)
        models.append(w)
    return np.array(models)


def run(drive, algorithm, cohorts, start=None):
    """Return the models of the first job, from `start`."""
    state = None if start is None else algorithm.initial_state(start[None])
    return np.array(drive(algorithm, cohorts, state)[0])[:, 0]


@pytest.mark.parametrize("sampled", [2, 4])
@pytest.mark.parametrize("name", ["fast_fedda", "c_fedda"])
def test_against_the_sums_of_the_scripts(name, sampled, problem, make_algorithm, make_hparams, cohorts_of, drive):
    """X is the sum of the points at which gradients were taken; small batches, two epochs, unequal K_m, any start."""
    hparams = make_hparams(clients_per_round=sampled, batch_size=4, local_epochs=2, weighting="examples")
    cohorts, start = cohorts_of(problem, hparams, 6), np.array([0.5, -1.0, 2.0, 0.3])
    models = run(drive, make_algorithm(name, problem, RATE, mu=MU), cohorts, start)
    expected = by_sums(problem, cohorts, constant=name == "c_fedda", start=start)
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["fast_fedda", "c_fedda", "mc_fedda"])
def test_without_mu_it_is_feddualavg(name, problem, make_algorithm, drive, whole_batches):
    """Fast-FedDA for any K; the others, which use t at the end of a round, for K = 1."""
    cohorts = whole_batches(problem, 2, 6)
    if name != "fast_fedda":
        cohorts = [one_step(cohort, problem) for cohort in cohorts]
    options = {"mu": 0.0} | ({"stages": 1} if name == "mc_fedda" else {})
    models = run(drive, make_algorithm(name, problem, RATE, server_lr=0.3, **options), cohorts)
    expected = run(drive, make_algorithm("feddualavg", problem, RATE), cohorts)
    np.testing.assert_allclose(models, expected, rtol=1e-12, atol=1e-13)


def one_step(cohort, problem):
    """Return the cohort with one full batch per client."""
    sizes = problem.data.sizes[cohort.clients]
    order, edges = np.concatenate([np.arange(n) for n in sizes]), np.append(0, np.cumsum(sizes))
    return replace(cohort, order=order, edges=edges, first=np.arange(len(sizes) + 1), mean_steps=1.0)


def test_with_one_step_c_fedda_is_fast_fedda(problem, make_algorithm, drive, whole_batches):
    cohorts = [one_step(cohort, problem) for cohort in whole_batches(problem, 3, 6)]
    fast, constant = (
        run(drive, make_algorithm(name, problem, RATE, mu=MU), cohorts) for name in ("fast_fedda", "c_fedda")
    )
    np.testing.assert_allclose(constant, fast, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["fast_fedda", "c_fedda", "mc_fedda"])
def test_the_optimum_is_a_fixed_point(name, problem, make_algorithm, optimum_of, drive, whole_batches):
    """With K = 1 and full participation."""
    optimum = optimum_of(problem)
    cohorts = [one_step(cohort, problem) for cohort in whole_batches(problem, 4, 5)]
    options = {"stages": 1} if name == "mc_fedda" else {}
    models = run(drive, make_algorithm(name, problem, RATE, mu=MU, **options), cohorts, optimum)
    np.testing.assert_allclose(models, np.tile(optimum, (5, 1)), rtol=0, atol=1e-11)


# Convergence.


def modulus(problem):
    """Return the strong convexity of F."""
    rows = np.hstack([problem.data.x, np.ones((len(problem.data.y), 1))])
    return 2 * np.linalg.eigvalsh(rows.T @ rows / len(rows))[0]  # weighted by examples


def test_the_error_decreases_as_one_over_n_despite_client_drift(
    make_problem, regularizer, make_algorithm, optimum_of, drive, whole_batches
):
    """Ten times the rounds give about a tenth of the error; that of FedDualAvg stays constant."""
    problem = make_problem(regularizer("l1", strength=0.1), sizes=(4, 2, 5), features=2, weighting="examples", seed=3)
    optimum, cohorts = optimum_of(problem), whole_batches(problem, 3, 200, epochs=2)

    def errors(name, **options):
        models = run(drive, make_algorithm(name, problem, 0.1, **options), cohorts)
        return [np.linalg.norm(models[r - 1] - optimum) for r in (20, 200)]

    biased = errors("feddualavg")
    for name in ("fast_fedda", "c_fedda"):
        early, late = errors(name, mu=modulus(problem))
        assert late < early / 4
        assert late < biased[1] / 10


def test_an_additional_point_changes_the_limit(problem, make_algorithm, optimum_of, drive, whole_batches):
    """K + 1 terms in X, as in the scripts, give the optimum of F - mu |w|^2 / (4 K) + psi, here with K = 1."""
    cohorts = [one_step(cohort, problem) for cohort in whole_batches(problem, 4, 200)]
    optimum = optimum_of(problem)
    models = run(drive, make_algorithm("fast_fedda", problem, RATE, mu=MU), cohorts)
    coded = by_sums(problem, cohorts, as_coded=True)
    biased = optimum
    for _ in range(500):
        slope = problem.weights @ np.array([gradient(problem.data, m, biased) for m in range(4)])
        biased = soft(biased - 0.1 * (slope - MU / 2 * biased), 0.1 * STRENGTH)
    distance = np.linalg.norm(biased - optimum)
    assert np.linalg.norm(models[-1] - optimum) < distance / 10
    assert np.linalg.norm(coded[-1] - biased) < distance / 10


# Stages.

FACTORS = (0.0, 0.5, 1.0, 3.0)


def candidates(v, a, near, radius):
    """Return the prox with thresholds a [n], by enumeration of possible minima and bisection on the multiplier."""

    def at(b):
        w = np.empty_like(v)
        for i in range(len(v)):
            choice = [0.0, near[i], *(v[i] + s * a[i] + r * b for s in (-1, 1) for r in (-1, 1))]
            cost = [0.5 * (c - v[i]) ** 2 + a[i] * abs(c) + b * abs(c - near[i]) for c in choice]
            w[i] = choice[int(np.argmin(cost))]
        return w

    low, high = 0.0, np.max(np.abs(v - near) + a)
    if np.abs(at(0.0) - near).sum() <= radius:
        return at(0.0)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if np.abs(at(middle) - near).sum() > radius else (low, middle)
    return at(high)


def project_l1(z, radius):
    if np.abs(z).sum() <= radius:
        return z
    u = np.sort(np.abs(z))[::-1]
    above = np.cumsum(u) - radius
    last = np.nonzero(u * np.arange(1, len(u) + 1) > above)[0][-1]
    return np.sign(z) * np.maximum(np.abs(z) - above[last] / (last + 1), 0)


def test_the_prox_in_the_ball_is_not_soft_thresholding_and_projection():
    random, worst = np.random.default_rng(0), 0.0
    for _ in range(30):
        v, near, a, radius = 2 * random.normal(size=6), random.normal(size=6), 0.5 * random.choice(FACTORS, 6), 1.0
        near[random.integers(6)] = 0.0
        out = np.empty(6)
        prox_l1_in_l1_ball(v, 0.5, a / 0.5, near, radius, out)
        np.testing.assert_allclose(out, candidates(v, a, near, radius), rtol=0, atol=1e-9)
        assert np.abs(out - near).sum() <= radius * (1 + 1e-12)
        then = near + project_l1(np.sign(v) * np.maximum(np.abs(v) - a, 0) - near, radius)
        value, other = (((w - v) ** 2).sum() / 2 + a @ np.abs(w) for w in (out, then))
        assert other >= value - 1e-12
        worst = max(worst, other - value)
    assert worst > 0.05


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_prox_in_the_ball_propagates_nan_and_infinity(bad):
    out = np.empty(3)
    prox_l1_in_l1_ball(np.array([1.0, bad, 2.0]), 0.5, np.ones(3), np.array([0.5, 0.5, 0.0]), 0.1, out)
    assert not np.isfinite(out).all()


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0), (0.0, 0.5, 3.0)])
def test_with_a_large_ball_every_stage_is_c_fedda(make_problem, make_algorithm, drive, whole_batches, factors):
    """Stages have 4, 2 and 1 times the strength; each starts at the last model, and the last has no end."""
    psi = L1(strength=STRENGTH, factors={f"x{i}": factor for i, factor in enumerate(factors)})
    problem = make_problem(psi, sizes=SIZES, features=3, weighting="examples", seed=1)
    cohorts = whole_batches(problem, 2, 9)
    models = run(drive, make_algorithm("mc_fedda", problem, RATE, mu=MU, stages=3, stage_rounds=2), cohorts)
    start, expected = np.zeros(4), []
    for rounds, factor in ((slice(0, 2), 4), (slice(2, 4), 2), (slice(4, 9), 1)):
        strength = factor * STRENGTH * np.array(factors)
        expected += list(by_sums(problem, cohorts[rounds], True, start=start, strength=strength))
        start = expected[-1]
    np.testing.assert_allclose(models, expected, rtol=1e-11, atol=1e-12)


def test_every_stage_stays_in_its_ball(make_problem, regularizer, make_algorithm, whole_batches):
    """Models of clients and server, with radius 0.06 around 0 and 0.03 around the end of the first stage."""
    problem = make_problem(regularizer("l1", strength=0.01), sizes=SIZES, features=3, seed=1)
    algorithm = make_algorithm("mc_fedda", problem, RATE, mu=MU, rho=0.03, stages=2, stage_rounds=3)
    state, reached = algorithm.initial_state(np.zeros((1, 4))), []
    for cohort in whole_batches(problem, 4, 6):
        made = algorithm.round(state, cohort)
        every = np.vstack([algorithm.client_models(state, made, cohort)[:, 0], algorithm.output(made.state)])
        reached.append(np.abs(every - state["start"])[:, :3].sum(axis=1).max())
        state = made.state
    np.testing.assert_allclose(reached, [0.06] * 3 + [0.03] * 3, rtol=1e-9)  # the constraint is active


# Costs and invalid input.


@pytest.mark.parametrize("name", ["fast_fedda", "c_fedda", "mc_fedda"])
def test_costs(name, problem, make_algorithm, whole_batches):
    (cohort,) = whole_batches(problem, 2, 1)
    costs = make_algorithm(name, problem).costs(cohort)
    assert costs.prox_calls == cohort.steps.sum() + 1
    assert (costs.vectors_up, costs.vectors_down) == (2, 4 if name == "mc_fedda" else 2)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("fast_fedda", {"mu": -0.1}, r"^algo\.mu: got -0\.1, must be a number >= 0$"),
        ("c_fedda", {"mu": np.inf}, r"^algo\.mu: got inf, must be a number >= 0$"),
        ("mc_fedda", {"rho": 0.0}, r"^algo\.rho: got 0\.0, must be a number > 0$"),
        ("mc_fedda", {"stages": 0}, r"^algo\.stages: got 0, must be a whole number from 1 to 60$"),
        ("mc_fedda", {"stage_rounds": 0}, r"^algo\.stage_rounds: got 0, must be a whole number >= 1$"),
    ],
)
def test_bad_options(name, options, line, problem, make_algorithm):
    with pytest.raises(UserError, match=line):
        make_algorithm(name, problem, **options)


def test_other_maps_and_regularizers_are_rejected(make_problem, problem, make_algorithm, regularizer):
    with pytest.raises(
        UserError, match=r"^mirror: got 'p_norm', must be euclidean: c_fedda supports no other mirror map$"
    ):
        make_algorithm("c_fedda", replace(problem, mirror=PNorm(power=1.5)))
    line = r"^regularizer: got 'l1_ball', must be l1: mc_fedda supports no other$"
    with pytest.raises(UserError, match=line):
        make_algorithm("mc_fedda", make_problem(regularizer("l1_ball")))
