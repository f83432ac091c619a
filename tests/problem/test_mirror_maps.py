"""Defining properties of mirror maps, and algorithms that use them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.mirror_maps import Entropy, Euclidean, Mirror, PNorm, all_mirrors
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.problem.regularizers.penalties import L1, NoRegularizer
from fco_cli.problem.regularizers.sets import L1Ball, NonNegative, Simplex
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

pytestmark = pytest.mark.usefixtures("both_ways")

SIZE, JOBS = 6, 5
PAIRS = [
    (Entropy(), NoRegularizer()),
    (Entropy(), NonNegative()),
    (Entropy(), L1(strength=0.4)),
    (Entropy(), L1Ball(radius=1.5)),
    (Entropy(), Simplex(total=1.5)),
    (PNorm(power=1.5), NoRegularizer()),
    (PNorm(power=1.5), L1(strength=0.4)),
    (PNorm(power=1.5), NonNegative()),
    (Euclidean(), L1(strength=0.4)),
    *((mirror, L1(strength=0.4, factors={"x0": 0, "x3": 2.5})) for mirror in (Entropy(), PNorm(power=1.5))),
]
every_pair = pytest.mark.parametrize(("mirror", "regularizer"), PAIRS, ids=lambda one: one.name)


def problem_with(mirror: Mirror, regularizer: Regularizer) -> Problem:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((4, 10, SIZE)), random.standard_normal((4, 10))
    data = ClientData.of_equal_clients(x, y + x[..., 0])
    return Problem(data, Linear(SIZE), Squared(), regularizer=regularizer, mirror=mirror)


def h(mirror: Mirror, w: np.ndarray) -> float:
    if isinstance(mirror, Entropy):
        return float(np.sum(w * np.log(np.maximum(w, 1e-300)) - w))
    return float(np.linalg.norm(w, mirror.power if isinstance(mirror, PNorm) else 2) ** 2 / 2)


def maps(mirror: Mirror, regularizer: Regularizer, jobs: int = JOBS):
    """Return to_dual and to_primal for weights [J, SIZE]; both check the bias, which is always Euclidean."""
    problem = problem_with(mirror, regularizer)
    geometry = problem.geometry(np.repeat(regularizer.numbers, jobs))

    def with_bias(v, call):
        padded, out = np.hstack([v, np.full((jobs, 1), -3.0)]), np.empty((jobs, SIZE + 1))
        call(padded, out)
        assert (out[:, -1] == -3).all()
        return out[:, :-1]

    def to_dual(w):
        return with_bias(w, lambda v, out: problem.to_dual(v, geometry, out))

    def to_primal(z, t):
        return with_bias(z, lambda v, out: problem.to_primal(v, np.full(jobs, t), geometry, out))

    return to_dual, to_primal


def domain_points(mirror: Mirror, regularizer: Regularizer) -> np.ndarray:
    """Return points in the domains of h and psi."""
    w = np.random.default_rng(1).standard_normal((JOBS, SIZE))
    if isinstance(mirror, Entropy) or regularizer.name == "non_negative":
        w = np.abs(w) + 1e-3
    if regularizer.name in ("simplex", "l1_ball"):
        w *= 1.5 / np.abs(w).sum(axis=1, keepdims=True) * (0.9 if regularizer.name == "l1_ball" else 1)
    return w


@every_pair
def test_to_primal_inverts_to_dual(mirror, regularizer):
    """On the domain, to_primal(to_dual(w), 0) = w."""
    to_dual, to_primal = maps(mirror, regularizer)
    w = domain_points(mirror, regularizer)
    np.testing.assert_allclose(to_primal(to_dual(w), 0.0), w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mirror", [Entropy(), PNorm(power=1.2), PNorm(power=2.0)], ids=lambda one: repr(one))
def test_dual_is_the_gradient_of_h(mirror):
    to_dual, _ = maps(mirror, NoRegularizer())
    w, step = domain_points(mirror, NoRegularizer()), 1e-6
    numeric = np.empty_like(w)
    for j in range(JOBS):
        for i in range(SIZE):
            e = np.eye(SIZE)[i] * step
            numeric[j, i] = (h(mirror, w[j] + e) - h(mirror, w[j] - e)) / (2 * step)
    np.testing.assert_allclose(to_dual(w), numeric, rtol=1e-6, atol=1e-6)


@every_pair
@pytest.mark.parametrize("t", [0.0, 0.7])
def test_primal_is_the_gradient_of_the_conjugate(mirror, regularizer, t):
    """Finite differences of (h + t psi)*(z) = <z, w> - h(w) - t psi(w) at w = to_primal(z, t) are equal to w."""
    _, to_primal = maps(mirror, regularizer)
    problem = problem_with(mirror, regularizer)
    numbers = np.repeat(regularizer.numbers, JOBS)
    z, step = np.random.default_rng(2).standard_normal((JOBS, SIZE)), 1e-5

    def conjugate(z):
        w = to_primal(z, t)
        psi = problem.psi(np.hstack([w, np.zeros((JOBS, 1))]), numbers)
        return (z * w).sum(axis=1) - [h(mirror, row) for row in w] - t * psi

    w, numeric = to_primal(z, t), np.empty_like(z)
    for i in range(SIZE):
        e = np.eye(SIZE)[i] * step
        numeric[:, i] = (conjugate(z + e) - conjugate(z - e)) / (2 * step)
    np.testing.assert_allclose(w, numeric, atol=1e-5)


@pytest.mark.parametrize(("mirror", "regularizer"), [pair for pair in PAIRS if pair[0].name != "euclidean"], ids=str)
def test_primal_minimizes(mirror, regularizer):
    """Closed forms agree with a general solver for h + t psi - <z, .>."""
    t, (_, to_primal) = 0.7, maps(mirror, regularizer)
    z = np.random.default_rng(3).standard_normal((JOBS, SIZE))
    ours = to_primal(z, t)
    positive = isinstance(mirror, Entropy) or regularizer.name == "non_negative"
    limits = {"simplex": "eq", "l1_ball": "ineq"}
    factors = [getattr(regularizer, "factors", {}).get(f"x{i}", 1) for i in range(SIZE)]

    def objective(v, z):  # w = v - u with u, v >= 0 makes |w|_1 smooth
        w = v[:SIZE] - v[SIZE:]
        psi = regularizer.strength * np.tile(factors, 2) @ v if isinstance(regularizer, L1) else 0.0
        return h(mirror, w if not positive else v[:SIZE]) + t * psi - z @ w

    bounds = [(1e-12, 99)] * SIZE + [(0, 0 if positive else 99)] * SIZE
    constraints = []
    if regularizer.name in limits:
        constraints = [{"type": limits[regularizer.name], "fun": lambda v: 1.5 - v[:SIZE].sum()}]
    for j in range(2):
        start = np.concatenate([np.full(SIZE, 0.2), np.zeros(SIZE)])
        found = minimize(objective, start, (z[j],), "SLSQP", bounds=bounds, constraints=constraints, tol=1e-13)
        v = np.concatenate([np.maximum(ours[j], 0), np.maximum(-ours[j], 0)])
        assert objective(v, z[j]) <= found.fun + 1e-9
        np.testing.assert_allclose(ours[j], found.x[:SIZE] - found.x[SIZE:], atol=2e-3)


@pytest.mark.parametrize("mirror", [Entropy(), PNorm(power=1.3), Euclidean()], ids=lambda one: one.name)
def test_divergence_is_bregman(mirror):
    w, start = domain_points(mirror, NoRegularizer())[:2]
    to_dual, _ = maps(mirror, NoRegularizer(), jobs=1)
    expected = h(mirror, w) - h(mirror, start) - to_dual(start[None])[0] @ (w - start)
    assert mirror.divergence(w, start) == pytest.approx(expected)
    assert mirror.divergence(w, w) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("algorithm", ["feddualavg", "fedmid"])
@pytest.mark.parametrize(
    "regularizer", [Simplex(total=1.5), L1Ball(radius=1.5), L1(strength=0.2)], ids=lambda r: r.name
)
def test_iterates_stay_in_the_domain_and_descend(algorithm, regularizer, make_algorithm):
    """With the entropy map, weights stay positive, their sum is preserved and the objective decreases."""
    problem = problem_with(Entropy(), regularizer)
    hparams = Hparams(client_lr=0.02, server_lr=1.0, rounds=1, clients_per_round=4, batch_size=5, local_epochs=1)
    numbers = regularizer.numbers
    method, sampler = make_algorithm(algorithm, problem, 0.02), Sampler(problem.data.sizes, hparams, 0)
    state, objectives = method.initial_state(problem.initial_models(numbers)), []
    for round_index in range(30):
        w = method.output(state)
        kernel = w[0, :SIZE]
        assert (kernel > 0).all()
        if regularizer.name == "simplex":
            assert kernel.sum() == pytest.approx(1.5)
        if regularizer.name == "l1_ball":
            assert kernel.sum() <= 1.5 + 1e-12
        objectives.append(float((problem.risk(w).value + problem.psi(w, numbers))[0]))
        state = method.round(state, sampler.cohort(round_index)).state
    assert objectives[-1] < objectives[0] - 0.1


def test_initial_models_are_in_the_domain():
    """0 becomes the uniform weights; a feasible start is unchanged."""
    for regularizer, expected in ((Simplex(total=1.5), 0.25), (L1(strength=1.0), 1 / SIZE), (L1Ball(radius=0.6), 0.1)):
        start = problem_with(Entropy(), regularizer).initial_models(regularizer.numbers)
        np.testing.assert_allclose(start, [[expected] * SIZE + [0]])
    l1, simplex = L1(strength=1.0), Simplex(total=1.5)
    assert (problem_with(Euclidean(), l1).initial_models(np.repeat(l1.numbers, 2)) == 0).all()
    np.testing.assert_allclose(problem_with(Euclidean(), simplex).initial_models(simplex.numbers)[:, :-1], 0.25)


def test_certificates_respect_the_domain_of_h(make_algorithm):
    """With the entropy map, l1 is restricted to the orthant: only the optimum there is certified."""
    random = np.random.default_rng(5)
    x = random.standard_normal((4, 10, SIZE))
    y = x @ np.array([1.0, -1.0, 0.5, 0, 0, 0])  # a negative weight is outside the orthant
    psi = L1(strength=0.1)
    problem = replace(problem_with(Entropy(), psi), training=ClientData.of_equal_clients(x, y))
    solver = make_algorithm("optimum", problem)
    w = solver.output(solver.round(solver.initial_state(problem.initial_models(psi.numbers))).state)
    assert w[0, 1] == 0
    assert (w[0, :SIZE] >= 0).all()
    gradient = problem.risk(w).gradient
    assert problem.kkt_residual(w, gradient, psi.numbers)[0] < 1e-8
    assert replace(problem, mirror=Euclidean()).kkt_residual(w, gradient, psi.numbers)[0] > 0.1


def test_pairs_without_a_closed_form_are_rejected():
    rejected = 0
    for mirror in (Entropy(), PNorm(power=1.5)):
        for name, kind in all_regularizers().items():
            if name in mirror.closed_forms or name == "blockwise":
                continue
            with pytest.raises(UserError, match=f"mirror={mirror.name} has no closed form with regularizer={name};"):
                mirror.primal(kind.__new__(kind))
            rejected += 1
    assert rejected > 20
    with pytest.raises(UserError, match="mirror=entropy"):
        problem_with(Entropy(), all_regularizers()["l2_ball"](radius=1.0))


@every_pair
@pytest.mark.parametrize("t", [0.0, 0.7])
def test_non_finite_input_gives_non_finite_output(mirror, regularizer, t):
    """Exception: -inf is the entropy map's dual of 0, and its primal is 0."""
    _, to_primal = maps(mirror, regularizer)
    for bad in (np.nan, np.inf, -np.inf):
        z = np.random.default_rng(6).standard_normal((JOBS, SIZE))
        for j in range(JOBS):
            z[j, : j + 1] = bad
        w = to_primal(z, t)
        if isinstance(mirror, Entropy) and bad == -np.inf:
            assert (w[z == bad] == 0).all()
            assert (w[z != bad] > 0).all()
        else:
            assert not np.isfinite(w).all(axis=1).any()


def test_power_is_checked():
    with pytest.raises(UserError, match=r"mirror\.power: got 1\.0, must be a number > 1 and <= 2"):
        PNorm(power=1.0)
    own = {name for name, kind in all_mirrors().items() if kind.__module__.startswith("fco_cli.")}
    assert own == {"euclidean", "entropy", "p_norm"}
