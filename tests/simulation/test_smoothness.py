from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from fco_cli.errors import UserError
from fco_cli.problem.data import SparseRows
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.models.network import Network
from fco_cli.problem.problem import TaskData
from fco_cli.simulation.smoothness import automatic_rate, automatic_rate_of_mean, estimate_smoothness


def largest_eigenvalue(x, factor):
    """Return the largest eigenvalue of factor/n * sum of (x, 1)(x, 1)'."""
    rows = np.hstack([x, np.ones((len(x), 1))])
    return factor * np.linalg.eigvalsh(rows.T @ rows / len(x))[-1]


# At w_0 = 0 the second derivative is 2 for the squared loss and sigmoid' = 1/4 for the logistic one.
@pytest.mark.parametrize(("loss", "factor"), [("squared", 2.0), ("logistic", 0.25)])
def test_the_estimate_is_exact_for_full_batches(make_problem, loss, factor):
    problem = make_problem(loss=loss, sizes=(8,), features=5)
    estimate = estimate_smoothness(problem, seed=0, batch_size=100, iterations=200)
    np.testing.assert_allclose(estimate, largest_eigenvalue(problem.data.x, factor), rtol=1e-3)


def test_the_largest_over_clients(make_problem):
    """L is determined by a client with features three times as large."""
    problem = make_problem(sizes=(6, 6, 6), features=5)
    problem.data.x[6:12] *= 3
    exact = max(largest_eigenvalue(problem.data.client(m).x, 2.0) for m in range(3))
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 6, iterations=200), exact, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.machine_code
def test_single_precision_is_sufficient(make_problem):
    single, double = (make_problem(sizes=(8,), features=5, dtype=dtype) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(estimate_smoothness(single, 0, 8), estimate_smoothness(double, 0, 8), rtol=1e-3)


def test_features_that_are_all_zero(make_problem):
    """Only the bias has curvature, which is 2."""
    problem = make_problem(sizes=(8,), features=5)
    problem.data.x[:] = 0
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 4), 2.0, rtol=1e-9)


def test_the_estimate_depends_on_the_seed_only(make_problem):
    problem = make_problem(sizes=(9, 9, 9, 9))
    assert estimate_smoothness(problem, 0, 3) == estimate_smoothness(problem, 0, 3)
    assert estimate_smoothness(problem, 0, 3) != estimate_smoothness(problem, 1, 3)


# hparams.client_lr=auto
@pytest.mark.parametrize(("loss", "factor"), [("squared", 2.0), ("logistic", 0.25)])
def test_auto_is_one_over_the_largest_of_all_clients(make_problem, loss, factor):
    """One of many clients determines L, and its batches are not among those sampled for a warning."""
    problem = make_problem(loss=loss, sizes=(6,) * 40, features=3)
    problem.data.x[6 * 17 : 6 * 18] *= 10
    exact = max(largest_eigenvalue(problem.data.client(m).x, factor) for m in range(40))
    rate = automatic_rate(problem, seed=1, batch_size=6)
    assert rate == pytest.approx(1 / exact, rel=2e-2)
    assert rate == float(f"{rate:.3g}")
    assert estimate_smoothness(problem, 1, 6) < exact / 3


def test_auto_of_huber_is_that_of_squares(make_problem):
    """All labels are beyond delta, where the Huber loss is linear at the start."""
    huber, squared = make_problem(loss="huber"), make_problem()
    huber.data.y[:] = squared.data.y[:] = 100.0
    assert automatic_rate(huber, 0, 9) == automatic_rate(squared, 0, 9)
    assert automatic_rate_of_mean(huber, 0) == automatic_rate_of_mean(squared, 0)


def test_auto_of_counts_is_by_their_curvature_where_the_means_are_the_counts(make_problem):
    problem = make_problem(loss="poisson", sizes=(9,), features=3)
    rows = np.hstack([problem.data.x, np.ones((9, 1))])
    exact = np.linalg.eigvalsh(rows.T @ (np.maximum(problem.data.y, 1)[:, None] * rows) / 9)[-1]
    assert automatic_rate(problem, 0, 9) == pytest.approx(1 / exact, rel=1e-2)
    assert automatic_rate_of_mean(problem, 0) == pytest.approx(1 / exact, rel=3e-2)


@pytest.mark.parametrize("seed", range(5))
def test_steps_of_auto_lead_counts_downhill(make_problem, seed):
    problem = make_problem(loss="poisson", sizes=(30,), features=3, seed=seed)
    rate, w, values = automatic_rate_of_mean(problem, 0), np.zeros((1, 4)), []
    for _ in range(300):
        risk = problem.risk(w)
        values.append(risk.value[0])
        w = w - rate * risk.gradient
    assert (np.diff(values) <= 1e-12).all()
    assert np.linalg.norm(risk.gradient) < 1e-3


def test_sparse_rows_have_the_same_rate(make_problem):
    dense = make_problem(loss="logistic", features=40)
    x = np.where(np.random.default_rng(0).random(dense.data.x.shape) < 0.1, dense.data.x, 0)
    rows = csr_array(x)
    stored = SparseRows(rows.data, rows.indices, rows.indptr.astype(np.int64), 40)
    thin = replace(dense, training=replace(dense.data, x=stored), model=SparseLinear(40))
    dense = replace(dense, training=replace(dense.data, x=x))
    assert automatic_rate(thin, 0, 9) == pytest.approx(automatic_rate(dense, 0, 9), rel=1e-2)


def test_auto_is_deterministic(make_problem):
    problem = make_problem(sizes=(9, 9), features=3)
    assert automatic_rate(problem, 0, 4) == automatic_rate(problem, 0, 4)


def test_auto_is_refused_if_l_is_unknown(make_problem, regularizer):
    """The message has one line."""
    problem = make_problem(loss="softmax", outputs=3, features=4)
    network = TaskData(problem.data, Network(4, (5,), 3, seed=0), problem.loss).to_problem(problem.regularizer)
    positive = TaskData(problem.data, problem.model, problem.loss).to_problem(regularizer("l1"), Entropy())
    huge = make_problem(features=3)
    huge.data.x[:] = 1e200
    for unknown, line in (
        (network, "for a model that is not convex"),
        (positive, "in the norm of mirror=entropy"),
        (huge, "for these data"),
    ):
        with pytest.raises(UserError) as caught:
            automatic_rate(unknown, 0, 4)
        reason = "auto needs the smoothness constant L, which is unknown"
        assert str(caught.value) == f"hparams.client_lr: got 'auto', must be a number > 0: {reason} {line}"
