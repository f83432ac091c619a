"""Tests of narrow problems: gradients and Hessians of models whose other weights are 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fco_cli.path.round import Request, evaluator
from fco_cli.problem.data import SparseRows
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.narrow import can_be_narrow
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.testing.problems import make_problem

COLUMNS = np.array([1, 4, 5, 9])


@pytest.mark.parametrize("loss", ["logistic", "squared", "cox", "poisson"])
@pytest.mark.parametrize("bits", [None, 40])
def test_a_narrow_round_is_a_part_of_a_complete_one(loss, bits):
    problem = make_problem(L1(strength=0.1), all_losses()[loss](), sizes=(14, 8, 18), features=9)
    models = np.zeros((3, 10))
    models[:, COLUMNS] = 0.1 * np.random.default_rng(0).standard_normal((3, 4))
    curved = np.array([True, False, True])
    wide, part = (
        evaluator(bits)([Request(problem, models, curved, COLUMNS, is_narrow)])[0] for is_narrow in (False, True)
    )
    np.testing.assert_allclose(part.value, wide.value, rtol=1e-9)
    np.testing.assert_allclose(part.gradient, wide.gradient[:, COLUMNS], atol=1e-10)
    np.testing.assert_allclose(part.hessian, wide.hessian, atol=1e-10)
    assert part.gradient.shape == (3, 4)


def test_only_dense_rows_and_one_output_can_be_narrow():
    plain, softmax = (make_problem(L1(strength=0.1), all_losses()[name]()) for name in ("squared", "softmax"))
    assert can_be_narrow(plain.data, plain.model)
    assert not can_be_narrow(softmax.data, softmax.model)
    rows = SparseRows(np.empty(0), np.empty(0, np.int64), np.zeros(41, np.int64), 5)
    assert not can_be_narrow(replace(plain.data, x=rows), SparseLinear(5))
