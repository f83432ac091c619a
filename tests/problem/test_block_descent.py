"""Block coordinate descent on a working set, compared with the certified solution that FISTA finds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from fco_cli.algorithms import Varying
from fco_cli.algorithms.baselines import Optimum
from fco_cli.data.sparse import as_sparse_rows
from fco_cli.problem import block_descent
from fco_cli.problem.block_descent import can_descend, descend
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers

ROWS, FEATURES = 40, 60
GROUPS = {f"x{k}": f"g{k % 7}" for k in range(FEATURES)}
PENALTIES = {
    "l1": {"strength": 0.3},
    "elastic_net": {"strength": 0.3, "l2_strength": 0.2},
    "group_lasso": {"strength": 0.5, "group_size": 5},
    "groups of different sizes": {"strength": 0.2, "group_size": 1, "groups": GROUPS},
}


@pytest.fixture(autouse=True)
def few_weights(monkeypatch):
    """Use descent for small problems, with working sets that start small."""
    monkeypatch.setattr(block_descent, "FEWEST_WEIGHTS", 10)
    monkeypatch.setattr(block_descent, "FIRST_WEIGHTS", 8)


def problem_of(psi="l1", loss="squared", sparse=False, dtype=np.float64, weights=None, features=FEATURES):
    random = np.random.default_rng(3)
    x = random.standard_normal((ROWS, features)) * (random.random((ROWS, features)) < 0.5) + 0.5
    y = x[:, :5] @ np.array([2.0, -1, 1, 3, -2]) + random.standard_normal(ROWS) + 4
    if loss == "logistic":
        y = (y > np.median(y)).astype(float)
    stored = scipy.sparse.csr_array(x)
    rows = as_sparse_rows(stored, stored.data) if sparse else x.astype(dtype)
    data = ClientData(rows, y.astype(dtype), np.array([0, 10, ROWS]), weights)
    regularizer = all_regularizers()[psi if psi in all_regularizers() else "group_lasso"]
    own = PENALTIES.get(psi, {"radius": 1.0} if psi == "l1_ball" else {"strength": 0.3})
    return Problem(
        data, (SparseLinear if sparse else Linear)(features), all_losses()[loss](), regularizer=regularizer(**own)
    )


def descended(problem, start=None, threshold=1e-9):
    start = np.zeros(problem.layout.size) if start is None else start
    return descend(problem, problem.regularizer.numbers, start, problem.risk(start[None]).gradient[0], threshold)


def optimum(problem, tolerance=1e-12):
    varying = Varying.from_rates(Optimum(), problem.regularizer, np.ones(1), np.ones(1))
    return Optimum(tolerance=tolerance).bind(problem, varying).step(np.zeros((1, problem.layout.size)), None)[0]


@pytest.mark.parametrize("sparse", [False, pytest.param(True, marks=pytest.mark.ci)])
@pytest.mark.parametrize("psi", PENALTIES)
def test_the_solution_is_that_of_fista(monkeypatch, psi, sparse):
    problem = problem_of(psi, sparse=sparse, weights=np.linspace(0.5, 2, ROWS))
    assert can_descend(problem)
    w, residual = descended(problem)
    assert residual <= 1e-9
    assert 0 < np.count_nonzero(w[:-1]) < FEATURES
    monkeypatch.setattr(block_descent, "FEWEST_WEIGHTS", 10**6)
    assert not can_descend(problem)
    np.testing.assert_allclose(w, optimum(problem), atol=1e-8)


def test_any_start_leads_to_the_solution():
    problem = problem_of()
    expected, _ = descended(problem)
    w, residual = descended(problem, np.linspace(-1, 1, FEATURES + 1))
    assert residual <= 1e-9
    np.testing.assert_allclose(w, expected, atol=1e-8)


@pytest.mark.parametrize("psi", PENALTIES)
def test_the_blocks_are_those_of_psi(psi):
    problem, w = problem_of(psi), np.linspace(-2, 3, FEATURES + 1)
    labels, factors, ridges = block_descent._blocks_of(problem, problem.regularizer.numbers)
    squares = np.bincount(labels, w[:-1] ** 2)
    value = (factors * np.sqrt(squares) + ridges * squares / 2).sum()
    np.testing.assert_allclose(problem.psi(w[None], problem.regularizer.numbers)[0], value)


@pytest.mark.parametrize(
    "options",
    [
        {"psi": "l1_ball"},
        {"psi": "l2_norm"},
        {"loss": "logistic"},
        {"dtype": np.float32},
        {"features": 5},
    ],
)
def test_other_problems_are_left_to_fista(options):
    assert can_descend(problem_of())
    assert not can_descend(problem_of(**options))


@pytest.mark.parametrize(("limit", "value"), [("MOST_WEIGHTS", 10), ("STAGES", 1), ("SWEEPS", 1)])
def test_fista_completes_what_descent_does_not_reach(monkeypatch, limit, value):
    problem = problem_of()
    expected, _ = descended(problem)
    monkeypatch.setattr(block_descent, limit, value)
    np.testing.assert_allclose(optimum(problem), expected, atol=1e-8)


def test_the_optimum_is_certified_without_fista(caplog):
    caplog.set_level("INFO")
    optimum(problem_of(), tolerance=1e-8)
    assert "by block coordinate descent" in caplog.text
