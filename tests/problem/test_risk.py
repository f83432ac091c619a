"""F from sufficient statistics, by a pass over the rows and by its definition agree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fco_cli.kernels.products import PANEL
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.risk import DataRisk, QuadraticRisk, blas, risk_of


def by_formula(problem, w):
    """Return sum_m p_m mean_i (x_i'w + b - y_i)^2 and its gradient."""
    value, gradient = 0.0, np.zeros(len(w))
    for m, weight in enumerate(problem.weights):
        data = problem.data.client(m)
        x, y = data.x.astype(float), data.y.astype(float)
        error = x @ w[:-1] + w[-1] - y
        value += weight * np.mean(error**2)
        gradient += weight * 2 / len(y) * np.append(x.T @ error, error.sum())
    return value, gradient


@pytest.mark.parametrize("cached", [512 * 2**10, 1], ids=["all rows of a client at a time", "five"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_both_risks_agree_with_the_definition(make_problem, weighting, dtype, cached, monkeypatch):
    monkeypatch.setattr("fco_cli.problem.risk.CACHE_BYTES", cached)
    problem = make_problem(weighting=weighting, dtype=dtype, sizes=(7, 4, 9, 1, 12, 3, 2, 5, 6, 8))
    w = np.random.default_rng(1).standard_normal((3, problem.layout.size)).astype(dtype)
    quadratic = QuadraticRisk.of(problem.data, problem.weights, rows_at_once=5)(w)
    passing = DataRisk(problem.data, problem.weights, problem.model, problem.loss)(w)
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    for j in range(3):
        value, gradient = by_formula(problem, w[j].astype(float))
        np.testing.assert_allclose(quadratic.value[j], value, rtol=1e-12)  # in float64 for every dtype
        np.testing.assert_allclose(quadratic.gradient[j], gradient, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(passing.value[j], value, rtol=tolerance)
        np.testing.assert_allclose(passing.gradient[j], gradient, rtol=tolerance, atol=tolerance)
    assert quadratic.accuracy is None
    assert passing.accuracy is None
    assert passing.gradient.dtype == quadratic.gradient.dtype == np.float64


def quadratic(problem) -> QuadraticRisk:
    return QuadraticRisk.of(problem.data, problem.weights)


def passing(problem) -> DataRisk:
    return DataRisk(problem.data, problem.weights, problem.model, problem.loss)


@pytest.mark.machine_code
@pytest.mark.parametrize("features", [1, PANEL - 1, PANEL, 2 * PANEL + 5])
def test_half_of_a_gram_matrix_gives_the_value(make_problem, features):
    """The matrix has one or several panels."""
    problem = make_problem(features=features, sizes=(30, 20, 40))
    w = np.random.default_rng(1).standard_normal((5, problem.layout.size))
    evaluation = quadratic(problem)(w, gradient=False)
    assert evaluation.gradient.shape == (0, features + 1)
    for j in range(5):
        np.testing.assert_allclose(evaluation.value[j], by_formula(problem, w[j])[0], rtol=1e-12)
        np.testing.assert_allclose(quadratic(problem)(w).gradient[j], by_formula(problem, w[j])[1], atol=1e-11)


@pytest.mark.machine_code
@pytest.mark.parametrize("make", [quadratic, passing])
def test_bits_do_not_depend_on_the_stack(make_problem, make):
    problem = make_problem(features=37, sizes=(30, 20, 40))
    w = np.random.default_rng(1).standard_normal((5, problem.layout.size))
    risk = make(problem)
    stacked = risk(w)
    for j in range(5):
        alone = risk(w[j : j + 1])
        assert alone.value[0] == stacked.value[j]
        np.testing.assert_array_equal(alone.gradient[0], stacked.gradient[j])
        assert risk(w[j : j + 1], gradient=False).value[0] == risk(w, gradient=False).value[j]


@pytest.mark.machine_code
def test_evaluations_are_independent(make_problem):
    """Gradient buffers are reused by one thread at a time."""
    problem = make_problem(features=37, sizes=(30, 20, 40))
    models = np.random.default_rng(1).standard_normal((40, 5, problem.layout.size))
    expected = [passing(problem)(w) for w in models]
    risk = passing(problem)
    with ThreadPoolExecutor(4) as pool:
        for concurrent, alone in zip(pool.map(risk, models), expected, strict=True):
            np.testing.assert_array_equal(concurrent.value, alone.value)
            np.testing.assert_array_equal(concurrent.gradient, alone.gradient)


class ThreadRecorder(np.ndarray):
    """Array that records the number of NumPy's BLAS threads whenever it is indexed.

    Compilation can load SciPy's own BLAS later, whose threads do not matter for NumPy's products.
    """

    threads: ClassVar[list[int]] = []

    def __getitem__(self, key):
        self.threads.extend(pool["num_threads"] for pool in blas().info() if pool["user_api"] == "blas")
        return super().__getitem__(key)


@pytest.mark.machine_code
def test_sufficient_statistics_use_one_thread(make_problem):
    """On some processors, the last bits of a matrix product depend on the number of threads."""
    problem = make_problem()
    data = ClientData(problem.data.x.view(ThreadRecorder), problem.data.y, problem.data.offsets)
    with threadpool_limits(2, user_api="blas"):
        QuadraticRisk.of(data, problem.weights, rows_at_once=5)
    assert set(ThreadRecorder.threads) == {1}


def test_accuracy_is_the_fraction_of_correct_rows(make_problem):
    """All rows count equally, for any weighting of clients."""
    problem = make_problem(loss="logistic", features=4)
    w = np.random.default_rng(4).standard_normal((2, 5))
    predicted = (problem.data.x @ w[:, :-1].T + w[:, -1]).T > 0
    correct = predicted == (problem.data.y > 0.5)
    np.testing.assert_allclose(problem.risk(w).accuracy, correct.mean(axis=1))


def test_the_cheaper_risk_is_chosen(make_problem):
    tall, wide, logistic = make_problem(features=6), make_problem(features=60), make_problem(loss="logistic")
    kinds = [type(risk_of(p.data, p.weights, p.model, p.loss)) for p in (tall, wide, logistic)]
    assert kinds == [QuadraticRisk, DataRisk, DataRisk]
    assert Squared.quadratic
