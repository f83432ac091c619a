"""Messages of the columns that a client's rows store, beside full vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms, touched
from fco_cli.algorithms.round import FederatedRound
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

FEATURES, CLIENTS, STORED = 40, 9, 4
METHODS = ("feddualavg", "feddualavg_osp", "fedavg")


def sparse_problem(psi: str = "l1", outputs: int = 1, dtype: str = "float64", weighted: bool = False) -> Problem:
    """Return clients with two to four rows; some columns are stored by no client."""
    random = np.random.default_rng(1)
    offsets = np.append(0, np.cumsum(random.integers(2, 5, CLIENTS)))
    rows = offsets[-1]
    columns = np.concatenate([np.sort(random.choice(FEATURES - 5, STORED, replace=False)) for _ in range(rows)])
    values = random.standard_normal(rows * STORED).astype(dtype)
    x = SparseRows(values, columns.astype(np.int32), np.arange(rows + 1) * STORED, FEATURES)
    weights = random.uniform(0.5, 2, rows) if weighted else None
    data = ClientData(x, random.standard_normal(rows).astype(dtype), offsets, weights)
    own = all_regularizers()[psi](strength=0.05)
    return Problem(data, SparseLinear(FEATURES, outputs), Squared(), regularizer=own)


def bound(problem: Problem, name: str = "feddualavg", jobs: int = 2) -> FederatedRound:
    method = all_algorithms()[name]()
    rates = np.linspace(0.02, 0.1, jobs).astype(problem.dtype)
    varying = Varying.from_rates(method, problem.regularizer, rates, np.ones(jobs, problem.dtype))
    algorithm = method.bind(problem, varying)
    assert isinstance(algorithm, FederatedRound)
    return algorithm


def cohorts(problem: Problem, rounds: int, **changes):
    hparams = Hparams(
        client_lr=0.1, server_lr=1.0, rounds=9, clients_per_round=5, batch_size=2, local_epochs=2, **changes
    )
    shares = problem.data.shares(hparams.weighting)
    sampler = Sampler(problem.data.sizes, hparams, 0, shares=shares)
    return [sampler.cohort(r) for r in range(rounds)]


def full(algorithm: FederatedRound) -> FederatedRound:
    """Return the algorithm with full vectors as messages."""
    algorithm.__dict__["sends_touched_columns"] = False
    return algorithm


def assert_equal_rounds(problem: Problem, name: str, jobs: int, absent=None, **changes) -> None:
    ours, theirs = bound(problem, name, jobs), full(bound(problem, name, jobs))
    assert ours.sends_touched_columns
    start = problem.initial_models(ours.varying.psi, None)
    first, second = ours.initial_state(start), theirs.initial_state(start)
    for cohort in cohorts(problem, 4, **changes):
        cohort = replace(cohort, absent=absent)
        made, expected = ours.round(first, cohort), theirs.round(second, cohort)
        assert made.messages is None
        assert expected.messages is not None
        for array in first:
            np.testing.assert_array_equal(made.state[array], expected.state[array])
        np.testing.assert_array_equal(made.dropped, expected.dropped)
        np.testing.assert_array_equal(made.arrived, expected.arrived)
        models = ours.client_models(first, made, cohort)
        np.testing.assert_array_equal(models, theirs.client_models(second, expected, cohort))
        first, second = made.state, expected.state
    assert np.abs(ours.output(first)).max() > 0


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("limit", [1, 60, 2**22])  # every client alone, some together, all together
def test_rounds_have_the_bits_of_full_vectors(monkeypatch, name, limit):
    monkeypatch.setattr(touched, "MAX_NUMBERS", limit)
    assert_equal_rounds(sparse_problem(), name, jobs=2)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_precision_weights_and_absent_clients(outputs, dtype):
    problem = sparse_problem(outputs=outputs, dtype=dtype, weighted=True)
    assert_equal_rounds(problem, "feddualavg", 1, weighting="examples", normalize_steps=False)
    assert_equal_rounds(problem, "feddualavg", 3, absent=np.array([False, True, False, False, True]))


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("name", METHODS)
def test_machine_code_has_the_bits_of_full_vectors(monkeypatch, name):
    monkeypatch.setattr(touched, "MAX_NUMBERS", 60)
    assert_equal_rounds(sparse_problem(), name, jobs=2)


def test_a_message_that_is_not_finite_is_dropped():
    problem = sparse_problem()
    problem.data.x.values[: 3 * STORED] = np.nan
    assert_equal_rounds(problem, "feddualavg", 2)


@pytest.mark.parametrize("name", ["fedmid", "scaffold_prox", "fast_fedda", "feddualavg_cv"])
def test_methods_with_other_messages_send_full_vectors(name):
    assert not bound(sparse_problem(), name).sends_touched_columns


def test_transforms_and_coupled_regularizers_need_full_vectors():
    problem = sparse_problem()
    compressed = all_algorithms()["feddualavg"]().with_transform(all_transforms()["topk"]())
    assert not touched.has_touched_messages(compressed, problem)
    assert not bound(sparse_problem("l2_norm")).sends_touched_columns
    assert bound(sparse_problem("l2_norm"), "fedavg").sends_touched_columns  # its local steps do not use psi


def test_methods_whose_local_steps_depend_on_the_problem_need_not_be_bound():
    """The bytes of a run are estimated before its method is bound."""
    assert not touched.has_touched_messages(all_algorithms()["prox_newton"](), sparse_problem())


def test_bytes_are_those_of_the_columns_that_the_clients_store():
    problem = sparse_problem()
    data, algorithm = problem.data, bound(problem)
    (cohort,) = cohorts(problem, 1)
    expected = 0
    for m in cohort.clients:
        rows = data.client(m).x
        columns = np.unique(rows.columns[rows.starts[0] : rows.starts[-1]])
        expected += min(len(columns) * (4 + 8) + 8, (FEATURES + 1) * 8)
    costs = algorithm.costs(cohort)
    assert (costs.bytes_up, costs.bytes_down) == (expected, expected)
    assert expected < full(bound(problem)).costs(cohort).bytes_up == 5 * (FEATURES + 1) * 8
    assert (costs.vectors_up, costs.vectors_down) == (5, 5)
