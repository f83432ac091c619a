"""Templates over jobs and blocks; the regularizers' tests compare the Euclidean map with the prox."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.kernels.compiled import specialize
from fco_cli.problem.data import SparseRows
from fco_cli.problem.descent import Batches
from fco_cli.problem.layout import Block, Layout, stack_numbers
from fco_cli.problem.mirror import Geometry, prox_of_each, psi_subgradient, psi_value, to_dual, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.regularizers.penalties import L1

LAYOUT = Layout((Block("first", (2, 2)), Block("bias", (1,), regularized=False), Block("second", (3,))))
TWO_JOBS = [L1(strength=0.5), L1(strength=2.0)]


@pytest.fixture
def geometry():
    return Geometry(
        stack_numbers(TWO_JOBS), Euclidean().numbers, TWO_JOBS[0].table(LAYOUT), TWO_JOBS[0].coordinate_numbers(LAYOUT)
    )


def test_euclidean_dual_is_the_primal(make_problem):
    problem = make_problem(features=3)
    w, dual = np.random.default_rng(0).standard_normal((2, 4)), np.empty((2, 4))
    problem.to_dual(w, problem.geometry(np.repeat(problem.regularizer.numbers, 2)), dual)
    np.testing.assert_array_equal(dual, w)


def test_free_primal_ignores_psi(make_problem, regularizer):
    problem = make_problem(regularizer("l1", strength=5.0), features=3)
    z, w = np.random.default_rng(0).standard_normal((2, 4)), np.empty((2, 4))
    problem.free_primal(z, np.ones(2), problem.geometry(np.repeat(problem.regularizer.numbers, 2)), w)
    np.testing.assert_array_equal(w, z)


def test_to_primal_processes_all_jobs_and_regularized_blocks(geometry):
    """The thresholds t * strength are 1 and 4; the bias is unchanged."""
    z = np.tile([3.0, -1.5, 0.5, 5, 3, -3, 4.5, 0], (2, 1))
    out = np.empty_like(z)
    specialize(to_primal, on_block={"primal": Euclidean().primal(TWO_JOBS[0])})(z, np.array([2.0, 2.0]), geometry, out)
    np.testing.assert_array_equal(out, [[2, -0.5, 0, 4, 3, -2, 3.5, 0], [0, 0, 0, 1, 3, 0, 0.5, 0]])


def test_prox_with_a_step_size_per_weight(geometry):
    """The thresholds are t_i * strength; the bias is unchanged."""
    z = np.tile([3.0, -1.5, 0.5, 5, 3, -3, 4.5, 0], (2, 1))
    t = np.tile([2.0, 1, 0.5, 4, 9, 1, 8, 1], (2, 1))
    out = np.empty_like(z)
    specialize(prox_of_each, on_block={"prox": L1.prox})(z, t, geometry, out)
    np.testing.assert_array_equal(out, [[2, -1, 0.25, 3, 3, -2.5, 0.5, 0], [0, 0, 0, 0, 3, -1, 0, 0]])


@pytest.mark.parametrize("with_psi", [True, False])
def test_primal_of_sparse_rows_is_computed_for_stored_features_only(make_problem, regularizer, with_psi):
    problem = make_problem(regularizer("elastic_net"), "softmax", features=4, outputs=2)
    rows = SparseRows(np.ones(3), np.array([2, 0, 2], np.int32), np.array([0, 1, 1, 3]), 4)  # columns 2 | none | 0, 2
    data = replace(problem.data, x=rows)
    sparse = replace(problem, training=data, model=SparseLinear(4, 2))
    batches = Batches(rows, data.y, np.array([0, 1, 2]), np.array([0, 2, 3]), sparse.model.widths, 2)
    geometry, t = sparse.geometry(np.repeat(sparse.regularizer.numbers, 3)), np.array([0.0, 0.5, 2.0])
    z, full = np.random.default_rng(0).standard_normal((3, 10)), np.empty((3, 10))
    (sparse.to_primal if with_psi else sparse.free_primal)(z, t, geometry, full)
    for k, stored in ((0, [2, 6, 8, 9]), (1, [0, 2, 4, 6, 8, 9])):
        partial = np.full_like(z, np.nan)
        sparse.primal_for_batches(with_psi)(z, t, geometry, batches, k, partial)
        assert np.flatnonzero(~np.isnan(partial[0])).tolist() == stored
        np.testing.assert_array_equal(partial[:, stored], full[:, stored])


def test_psi_is_summed_over_the_regularized_blocks(geometry):
    w = np.array([[1.0, 2, 0, 0, 100, -3, 0, 0], [0, 0, 0, 1, 100, 0, 0, 2]])
    total, subgradient = np.zeros(2), np.zeros_like(w)
    specialize(psi_value, on_block={"value": L1.value})(w, geometry, total)
    specialize(psi_subgradient, on_block={"subgradient": L1.subgradient})(w, geometry, subgradient)
    np.testing.assert_array_equal(total, [0.5 * 6, 2 * 3])
    np.testing.assert_array_equal(subgradient, [[0.5, 0.5, 0, 0, 0, -0.5, 0, 0], [0, 0, 0, 2, 0, 0, 0, 2]])


def test_templates_accept_a_python_function(geometry):
    """A mirror map can be an ordinary function."""

    def dual(w, h, out):
        out[:] = np.exp(w)

    w, out = np.zeros((2, 8)), np.empty((2, 8))
    specialize(to_dual, on_block={"dual": dual})(w, geometry, out)
    np.testing.assert_array_equal(out, np.tile([1.0, 1, 1, 1, 0, 1, 1, 1], (2, 1)))
