"""`descend` for every loss, compared with finite differences of the mean loss."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.products import CHUNK
from fco_cli.problem.descent import Batches
from fco_cli.problem.losses import all_losses
from fco_cli.problem.regularizers import all_regularizers


@pytest.fixture(params=sorted(name for name, kind in all_losses().items() if kind.client_loss is None))
def problem(request, make_problem):
    return make_problem(loss=request.param, outputs=3 if request.param == "softmax" else 1, features=4)


def batches_of(problem, rows) -> Batches:
    """Return three batches; the second one consists of `rows`."""
    data, order = problem.data, np.concatenate([[5, 6], rows, [8]])
    return Batches(data.x, data.y, order, np.array([0, 2, 2 + len(rows), 3 + len(rows)]), problem.model.widths, 3)


def test_steps_is_the_number_of_batches(problem):
    assert batches_of(problem, np.arange(4)).steps == 3


def mean_loss(problem, w, rows) -> float:
    outputs, value = problem.model.outputs, problem.loss.bound_kernel("value")
    scores = problem.data.x[rows] @ w[:-outputs].reshape(outputs, -1).T + w[-outputs:]
    return float(np.mean([value(s, y) for s, y in zip(scores, problem.data.y[rows], strict=True)]))


def test_descend_takes_a_gradient_step(problem):
    """Each job has its own rate and query point."""
    random, rows = np.random.default_rng(2), np.array([3, 0, 11, 7, 19, 4, 2])
    query, state = random.standard_normal((2, 2, problem.layout.size))
    rate, before = np.array([0.1, 0.7]), state.copy()
    problem.descend(state, query, batches_of(problem, rows), 1, rate)
    for j in range(2):
        nudges = 1e-6 * np.eye(problem.layout.size)
        gradient = [
            (mean_loss(problem, query[j] + n, rows) - mean_loss(problem, query[j] - n, rows)) / 2e-6 for n in nudges
        ]
        np.testing.assert_allclose(state[j], before[j] - rate[j] * np.array(gradient), rtol=1e-6, atol=1e-7)


def test_descend_may_update_its_own_query(problem):
    w = np.random.default_rng(3).standard_normal((3, problem.layout.size))
    batches, rate = batches_of(problem, np.arange(8)), np.array([0.1, 0.2, 0.3])
    separate, updated = w.copy(), w.copy()
    problem.descend(separate, w, batches, 1, rate)
    problem.descend(updated, updated, batches, 1, rate)
    np.testing.assert_array_equal(updated, separate)


SEPARABLE = sorted(name for name, kind in all_regularizers().items() if kind.separable)


@pytest.mark.parametrize("with_psi", [True, False])
@pytest.mark.parametrize(
    ("name", "outputs", "features", "jobs"),
    [
        *((name, 1, 5, 2) for name in SEPARABLE),
        ("l1", 3, 2 * CHUNK + 7, 3),
        ("elastic_net", 1, CHUNK, 6),
        ("nuclear", 2, 3, 2),
    ],
)
def test_a_dual_step_uses_the_gradient_at_the_primal(
    make_problem, regularizer, name, outputs, features, jobs, with_psi
):
    """Results are bitwise equal whether the primal is computed by blocks of columns or at once."""
    shape = (outputs, features) if name == "nuclear" else None
    loss = "softmax" if outputs > 1 else "logistic"
    problem = make_problem(regularizer(name, lower=-0.5), loss, features=features, outputs=outputs, weights_shape=shape)
    batches, random = batches_of(problem, np.array([3, 0, 11, 7, 19, 4, 2])), np.random.default_rng(4)
    z, t, rate = random.standard_normal((jobs, problem.layout.size)), random.random(jobs), random.random(jobs)
    geometry = problem.geometry(np.repeat(problem.regularizer.numbers, jobs))
    geometry = geometry._replace(per_weight=random.random(problem.layout.size))
    expected, w = z.copy(), np.empty_like(z)
    (problem.to_primal if with_psi else problem.free_primal)(z, t, geometry, w)
    problem.descend(expected, w, batches, 1, rate)
    problem.descend_dual(with_psi)(z, t, geometry, batches, 1, rate, np.empty_like(z))
    np.testing.assert_array_equal(z, expected)
