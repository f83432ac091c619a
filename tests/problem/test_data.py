"""Client data: rows of each client, row weights and sparse rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.risk import DataRisk


def test_the_data_of_one_client(make_problem):
    data = make_problem(sizes=(7, 4, 9)).data
    alone = data.client(1)
    np.testing.assert_array_equal(alone.x, data.x[7:11])
    np.testing.assert_array_equal(alone.y, data.y[7:11])
    assert (alone.clients, alone.sizes.tolist()) == (1, [4])
    assert np.shares_memory(alone.x, data.x)


def test_equal_clients_are_laid_out_one_after_another():
    x, y = np.arange(24.0).reshape(3, 4, 2), np.arange(12.0).reshape(3, 4)
    data = ClientData.of_equal_clients(x, y)
    np.testing.assert_array_equal(data.offsets, [0, 4, 8, 12])
    np.testing.assert_array_equal(data.client(2).x, x[2])
    np.testing.assert_array_equal(data.client(2).y, y[2])


def doubled(data: ClientData) -> tuple[ClientData, ClientData]:
    """Return data in which client 0's first two rows count twice: by a weight, and by duplication."""
    weights = np.ones(len(data.y))
    weights[:2] = 2
    rows = np.concatenate([[0, 0, 1, 1], np.arange(2, len(data.y))])
    return replace(data, row_weights=weights), ClientData(
        data.x[rows], data.y[rows], data.offsets + np.array([0, 2, 2, 2])
    )


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_a_row_of_weight_two_equals_two_rows(make_problem, loss, weighting):
    problem = make_problem(loss=loss, outputs=3 if loss == "softmax" else 1, weighting=weighting)
    by_weight, by_rows = (replace(problem, training=data) for data in doubled(problem.data))
    w = np.random.default_rng(0).standard_normal((2, problem.layout.size))
    np.testing.assert_allclose(by_weight.weights, by_rows.weights, rtol=1e-14)
    for way in (lambda one: one.risk(w), lambda one: DataRisk(one.data, one.weights, one.model, one.loss)(w)):
        np.testing.assert_allclose(way(by_weight).value, way(by_rows).value, rtol=1e-12)
        np.testing.assert_allclose(way(by_weight).gradient, way(by_rows).gradient, rtol=1e-10, atol=1e-12)


def test_gradient_steps_use_row_weights(make_problem, make_algorithm, full_cohort):
    problem = make_problem(loss="logistic")
    by_weight, _ = doubled(problem.data)
    problem, w = replace(problem, training=by_weight), np.random.default_rng(0).standard_normal((1, 7))
    result = make_algorithm("fedavg", problem, client_lr=1.0).round({"w": w}, full_cohort(problem))
    np.testing.assert_allclose(result.state["w"], w - problem.risk(w).gradient, rtol=1e-12, atol=1e-14)


def sparse(x: np.ndarray) -> SparseRows:
    stored = csr_matrix(x)
    return SparseRows(stored.data, stored.indices, stored.indptr.astype(np.int64), x.shape[1])


@pytest.mark.parametrize("outputs", [pytest.param(1, marks=[pytest.mark.ci, pytest.mark.machine_code]), 3])
def test_sparse_and_dense_rows_agree(make_problem, make_algorithm, make_hparams, cohorts_of, outputs):
    """The risk, its gradient and rounds with batches agree up to the order of sums."""
    problem = make_problem(L1(strength=0.05), "softmax" if outputs > 1 else "logistic", outputs=outputs)
    x = np.where(np.random.default_rng(1).random(problem.data.x.shape) < 0.4, problem.data.x, 0)
    dense = replace(problem, training=replace(problem.data, x=x))
    sparse_problem = replace(problem, training=replace(problem.data, x=sparse(x)), model=SparseLinear(6, outputs))
    w = np.random.default_rng(0).standard_normal((2, problem.layout.size))
    np.testing.assert_allclose(sparse_problem.risk(w).value, dense.risk(w).value, rtol=1e-12)
    np.testing.assert_allclose(sparse_problem.risk(w).gradient, dense.risk(w).gradient, rtol=1e-10, atol=1e-13)
    states = []
    for one in (dense, sparse_problem):
        algorithm = make_algorithm("feddualavg", one)
        state = algorithm.initial_state(w[:1])
        for cohort in cohorts_of(one, make_hparams()):
            state = algorithm.round(state, cohort).state
        states.append(state["z"])
    np.testing.assert_allclose(states[1], states[0], rtol=1e-11, atol=1e-13)
