from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fco_cli.problem import certificate
from fco_cli.problem.certificate import hessian, is_certified
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.models.network import Network
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.regularizers.penalties import NoRegularizer

ROWS = 40
LABELS = {
    "logistic": lambda x, random: (x[:, 0] + random.standard_normal(len(x)) > 0.5).astype(float),
    "poisson": lambda x, random: random.poisson(np.exp(0.4 * x[:, 0] + 0.5)).astype(float),
    "softmax": lambda x, random: np.digitize(x[:, 0] + random.standard_normal(len(x)), [-0.5, 0.5]).astype(float),
    "squared": lambda x, random: x[:, 0] + 5 + random.standard_normal(len(x)),
    "huber": lambda x, random: x[:, 0] + 0.3 * random.standard_normal(len(x)),
}


def stored(x: np.ndarray) -> SparseRows:
    """Return x as sparse rows, with zeros stored."""
    rows, columns = x.shape
    return SparseRows(x.ravel(), np.tile(np.arange(columns), rows), columns * np.arange(rows + 1), columns)


def problem_of(loss: str, scales, shift: float = 0.0, sparse: bool = False) -> Problem:
    """Return a problem with three features in these units; the labels depend on the unscaled features."""
    random = np.random.default_rng(1)
    plain = random.standard_normal((ROWS, 3))
    y, outputs = LABELS[loss](plain, random), 3 if loss == "softmax" else 1
    x = plain * scales + np.array([shift, 0.0, 0.0])
    data = ClientData(stored(x) if sparse else x, y, np.array([0, 15, ROWS], dtype=np.int64))
    model = (SparseLinear if sparse else Linear)(3, outputs)
    return Problem(data, model, all_losses()[loss](), regularizer=NoRegularizer())


@cache
def plain_solution(loss: str) -> np.ndarray:
    """Return the solution for unscaled features by Newton's method, with a finite-difference Hessian."""
    plain = problem_of(loss, 1.0)
    w, steps = np.zeros(plain.layout.size), 1e-5 * np.eye(plain.layout.size)
    w[0] = loss == "huber"  # Newton's method converges from a nearby start only
    for _ in range(12):
        matrix = (plain.risk(w + steps).gradient - plain.risk(w - steps).gradient) / 2e-5
        w = w - np.linalg.pinv(matrix, rcond=1e-8) @ plain.risk(w[None]).gradient[0]
    assert np.abs(plain.risk(w[None]).gradient).max() < 1e-12
    return w


def solution(loss: str, scales, shift=0.0) -> np.ndarray:
    """Return the solution in these units."""
    w = plain_solution(loss)
    outputs = len(w) // 4
    weights = w[: 3 * outputs].reshape(outputs, 3) / scales
    return np.append(weights.ravel(), w[3 * outputs :] - shift * weights[:, 0])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", list(LABELS))
@pytest.mark.parametrize("scales", [1.0, 1e-9, 1e9, np.array([1e-9, 1.0, 1e6])])
def test_a_solution_in_any_units_is_certified_and_a_constant_model_is_not(loss, scales, sparse):
    problem = problem_of(loss, scales, sparse=sparse)
    best, numbers = solution(loss, scales), problem.regularizer.numbers
    assert is_certified(problem, numbers, best, 1e-8)
    constant = np.where(problem.layout.regularized, 0.0, best)
    assert is_certified(problem, numbers, constant, 1e-8) is False
    assert is_certified(problem, numbers, best * 1.001, 1e-8) is False


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_a_shift_does_not_hide_a_feature(loss):
    """For a feature far from 0, the relevant direction has a tiny curvature in any units of the weights."""
    problem = problem_of(loss, 1.0, shift=1e5)
    best, numbers = solution(loss, 1.0, 1e5), problem.regularizer.numbers
    assert is_certified(problem, numbers, best, 1e-8)
    off = best + np.array([1e-2, 0, 0, -1e3])
    assert np.abs(problem.risk(off[None]).gradient).max() > 1e-12
    assert is_certified(problem, numbers, off, 1e-8) is False


@pytest.mark.parametrize("psi", ["l1", "elastic_net", "l2_squared", "l1_ball", "nuclear", "linf_ball", "l2_norm"])
@pytest.mark.parametrize("twins", [False, True])
def test_solutions_for_any_regularizer_are_certified(make_problem, make_algorithm, regularizer, psi, twins):
    """Solutions are certified even for a singular Hessian (two equal features); nearby models are not."""
    shape = (2, 3) if psi == "nuclear" else None
    problem = make_problem(regularizer(psi, strength=0.1), sizes=(30, 20), weights_shape=shape)
    if twins:
        x = problem.data.x.copy()
        x[:, 1] = x[:, 0]
        problem = replace(problem, training=replace(problem.data, x=x))
    solver = make_algorithm("optimum", problem, tolerance=1e-10)
    best = solver.output(solver.round(solver.initial_state(np.zeros((1, problem.layout.size)))).state)[0]
    assert is_certified(problem, problem.regularizer.numbers, best, 1e-8)
    assert is_certified(problem, problem.regularizer.numbers, best + 1e-2, 1e-8) is False


def test_the_hessian_from_gradients_equals_that_from_rows(make_problem):
    """Gradients, which sites send, are sufficient in any units."""
    for loss, scale in (("logistic", 1.0), ("logistic", 1e-9), ("poisson", 1e4), ("squared", 1e6)):
        problem = make_problem(loss=loss, sizes=(30, 20))
        problem = replace(problem, training=replace(problem.data, x=problem.data.x * scale))
        w = np.append(np.linspace(-0.5, 0.5, 6) / scale, 0.1)
        expected = hessian(problem, w)
        actual = certificate._from_gradients(problem, w)
        units = np.sqrt(expected.diagonal())
        np.testing.assert_allclose(actual / units / units[:, None], expected / units / units[:, None], atol=1e-5)


def test_non_convex_problems_have_no_certificate(make_problem, regularizer):
    problem = make_problem(regularizer("l0"))
    assert is_certified(problem, problem.regularizer.numbers, np.zeros(7), 1e-8) is None
    network = replace(make_problem(loss="logistic"), model=Network(6, (2,), 1, seed=0))
    assert is_certified(network, network.regularizer.numbers, network.model.initial(), 1e-8) is None


def test_wide_models_are_certified_by_the_diagonal(monkeypatch):
    """With too many parameters for a matrix, every feature is still scaled by its own units."""
    monkeypatch.setattr(certificate, "LARGEST_MATRIX", 2)
    for sparse in (False, True):
        problem = problem_of("logistic", 1e-9, sparse=sparse)
        best, numbers = solution("logistic", 1e-9), problem.regularizer.numbers
        assert hessian(problem, best) is None
        assert is_certified(problem, numbers, best, 1e-8)
        assert is_certified(problem, numbers, np.append(np.zeros(3), best[-1]), 1e-8) is False


def test_labels_whose_squares_underflow_are_not_certified():
    """Every model would have the objective 0."""
    problem = problem_of("squared", 1.0)
    tiny = replace(problem, training=replace(problem.data, y=problem.data.y * 1e-300))
    assert is_certified(tiny, tiny.regularizer.numbers, np.zeros(4), 1e-8) is False
    zero = replace(problem, training=replace(problem.data, y=problem.data.y * 0))
    assert is_certified(zero, zero.regularizer.numbers, np.zeros(4), 1e-8)


@pytest.mark.parametrize("name", [name for name, kind in all_regularizers().items() if kind.dominates_two_norm])
def test_penalties_dominate_the_two_norm_as_declared(make_problem, regularizer, name):
    psi = regularizer(name, group_size=2)
    problem = make_problem(psi, features=6, weights_shape=(2, 3) if name == "nuclear" else None)
    w = np.random.default_rng(0).standard_normal((50, problem.layout.size)) * (np.random.default_rng(1).random(7) < 0.4)
    values = problem.psi(w, np.repeat(psi.numbers, len(w)))
    norms = np.linalg.norm(np.where(problem.layout.regularized, w, 0), axis=1)
    assert (values >= psi.strength * norms * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", [name for name, kind in all_regularizers().items() if kind.bounds_two_norm])
def test_balls_bound_the_two_norm_as_declared(make_problem, regularizer, name):
    psi = regularizer(name)
    problem = make_problem(psi, features=6, weights_shape=(2, 3) if name == "nuclear_ball" else None)
    z = 10 * np.random.default_rng(0).standard_normal((50, problem.layout.size))
    inside = problem.prox(z, np.ones(50), np.repeat(psi.numbers, 50))
    norms = np.linalg.norm(np.where(problem.layout.regularized, inside, 0), axis=1)
    assert (norms <= psi.radius * (1 + 1e-9)).all()
