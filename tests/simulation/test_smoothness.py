from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.mirror_maps import Entropy
from fco_cli.problem.network import Network
from fco_cli.problem.problem import TaskData
from fco_cli.simulation.smoothness import automatic_rate, estimate_smoothness


def largest_eigenvalue(x, factor):
    """Of factor/n * sum of (x, 1)(x, 1)'."""
    rows = np.hstack([x, np.ones((len(x), 1))])
    return factor * np.linalg.eigvalsh(rows.T @ rows / len(x))[-1]


# At w_0 = 0 the second derivative is 2 for the squared loss and sigmoid' = 1/4 for the logistic one.
@pytest.mark.parametrize(("loss", "factor"), [("squared", 2.0), ("logistic", 0.25)])
def test_exact_where_the_batch_is_all_there_is(make_problem, loss, factor):
    problem = make_problem(loss=loss, sizes=(8,), features=5)
    estimate = estimate_smoothness(problem, seed=0, batch_size=100, iterations=200)
    np.testing.assert_allclose(estimate, largest_eigenvalue(problem.data.x, factor), rtol=1e-3)


def test_the_largest_over_clients(make_problem):
    """A client with features three times as large decides."""
    problem = make_problem(sizes=(6, 6, 6), features=5)
    problem.data.x[6:12] *= 3
    exact = max(largest_eigenvalue(problem.data.client(m).x, 2.0) for m in range(3))
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 6, iterations=200), exact, rtol=1e-6)


@pytest.mark.slow
def test_single_precision_is_good_enough(make_problem):
    single, double = (make_problem(sizes=(8,), features=5, dtype=dtype) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(estimate_smoothness(single, 0, 8), estimate_smoothness(double, 0, 8), rtol=1e-3)


def test_features_that_are_all_zero(make_problem):
    """Then only the bias is curved: 2."""
    problem = make_problem(sizes=(8,), features=5)
    problem.data.x[:] = 0
    np.testing.assert_allclose(estimate_smoothness(problem, 0, 4), 2.0, rtol=1e-9)


def test_a_function_of_the_seed(make_problem):
    problem = make_problem(sizes=(9, 9, 9, 9))
    assert estimate_smoothness(problem, 0, 3) == estimate_smoothness(problem, 0, 3)
    assert estimate_smoothness(problem, 0, 3) != estimate_smoothness(problem, 1, 3)


# hparams.client_lr=auto
@pytest.mark.parametrize(("loss", "factor"), [("squared", 2.0), ("logistic", 0.25)])
def test_auto_is_one_over_the_largest_of_all_clients(make_problem, loss, factor):
    """Also where one client of many decides, and the batches that a warning looks at do not meet it."""
    problem = make_problem(loss=loss, sizes=(6,) * 40, features=3)
    problem.data.x[6 * 17 : 6 * 18] *= 10
    exact = max(largest_eigenvalue(problem.data.client(m).x, factor) for m in range(40))
    found = automatic_rate(problem, seed=1, batch_size=6)
    assert found == pytest.approx(1 / exact, rel=2e-2)
    assert found == float(f"{found:.3g}")
    assert estimate_smoothness(problem, 1, 6) < exact / 3


def test_auto_is_always_the_same_number(make_problem):
    problem = make_problem(sizes=(9, 9), features=3)
    assert automatic_rate(problem, 0, 4) == automatic_rate(problem, 0, 4)


def test_where_the_start_does_not_tell_auto_is_refused(make_problem, regularizer):
    """One line each."""
    problem = make_problem(loss="softmax", outputs=3, features=4)
    network = TaskData(problem.data, Network(4, (5,), 3, seed=0), problem.loss).joined(problem.regularizer)
    positive = TaskData(problem.data, problem.model, problem.loss).joined(regularizer("l1"), Entropy())
    huge = make_problem(features=3)
    huge.data.x[:] = 1e200
    for unknown, line in (
        (network, "for a network from where it starts"),
        (positive, "in the norm of mirror=entropy"),
        (make_problem(loss="poisson"), "for the poisson loss from where it starts"),
        (make_problem(loss="huber"), "for the huber loss from where it starts"),
        (huge, "on these data"),
    ):
        with pytest.raises(UserError) as caught:
            automatic_rate(unknown, 0, 4)
        said = "hparams.client_lr: got 'auto', must be a number > 0 here: L, of which it is the inverse, is not known"
        assert str(caught.value) == f"{said} {line}"
