"""Losses of held-out rows of a Cox model, by the definition of Verweij and van Houwelingen."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.held_out import difference_losses, joined
from fco_cli.problem.losses.survival import TIES, Cox
from fco_cli.problem.models.linear import Linear, SparseLinear


def log_likelihood(w, x, y, ties) -> float:
    """Return the log partial likelihood, from its definition."""
    total, times = 0.0, np.abs(y)
    for time in np.unique(times[y > 0]):
        tied = (times == time) & (y > 0)
        at_risk, own = np.exp(x[times >= time] @ w).sum(), np.exp(x[tied] @ w).sum()
        removed = np.arange(tied.sum()) / tied.sum() * (ties == "efron")
        total += (x[tied] @ w).sum() - np.log(at_risk - removed * own).sum()
    return total


def rows(count: int, seed: int = 0) -> ClientData:
    random = np.random.default_rng(seed)
    y = np.ceil(5 * random.exponential(size=count)) * np.where(random.random(count) < 0.6, 1, -1)
    return ClientData(random.standard_normal((count, 3)), y, np.array([0, count], np.int64))


def sparse_rows(dense: np.ndarray) -> SparseRows:
    own = csr_matrix(dense)
    return SparseRows(own.data, own.indices.astype(np.int32), own.indptr.astype(np.int64), dense.shape[1])


@pytest.mark.parametrize("ties", TIES)
def test_the_difference_of_the_likelihoods(ties):
    training, held_out = rows(20), rows(7, 1)
    both, w = joined(training, held_out), np.random.default_rng(2).standard_normal((3, 4)) * [1, 1, 1, 0]
    losses = difference_losses(training, held_out, 0.3, Linear(3), Cox(ties), w)
    expected = [
        -0.3
        / 7
        * (log_likelihood(one[:3], both.x, both.y, ties) - log_likelihood(one[:3], training.x, training.y, ties))
        for one in w
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert (losses > 0).all()
    alone = difference_losses(None, held_out, 0.3, Linear(3), Cox(ties), w)
    np.testing.assert_allclose(
        alone, [-0.3 / 7 * log_likelihood(one[:3], held_out.x, held_out.y, ties) for one in w], rtol=1e-12
    )


def test_held_out_rows_that_are_censored_enlarge_the_risk_sets():
    training, late = rows(20), ClientData(np.zeros((1, 3)), np.array([-1000.0]), np.array([0, 1], np.int64))
    assert difference_losses(training, late, 1.0, Linear(3), Cox(), np.zeros((1, 4)))[0] > 0
    assert difference_losses(None, late, 1.0, Linear(3), Cox(), np.zeros((1, 4)))[0] == 0


def test_sparse_rows():
    """Slices of sparse rows hold the entries of other rows as well."""
    dense = np.where(np.random.default_rng(3).random((12, 3)) < 0.5, rows(12).x, 0)
    y, offsets = rows(12).y, np.array([0, 8, 12], np.int64)
    both = [ClientData(x, y, offsets) for x in (dense, sparse_rows(dense))]
    w = np.array([[1.0, -1, 0.5, 0]])
    one, other = (
        difference_losses(data.client(1), data.client(0), 1.0, model, Cox(), w)
        for data, model in zip(both, (Linear(3), SparseLinear(3)), strict=True)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_a_loss_that_overflows_is_infinite():
    losses = difference_losses(rows(20), rows(7, 1), 1.0, Linear(3), Cox(), np.array([[1e308, 1e308, 1e308, 0]]))
    assert losses[0] == np.inf
