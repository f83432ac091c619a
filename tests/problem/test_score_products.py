"""Sums of outer products of gradients, compared with gradients of single rows and of single clients."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.risk import risk_of
from fco_cli.problem.score_products import score_products_of

CASES = {"squared": (0, 1), "logistic": (0, 1), "poisson": (0, 1), "huber": (0, 1), "softmax": (0, 1), "cox": (0,)}


def task_of(loss: str, weighted: bool = False, site_bias: bool = False) -> TaskData:
    random = np.random.default_rng(3)
    x = random.standard_normal((23, 3))
    y = {"logistic": random.integers(0, 2, 23), "poisson": random.poisson(2, 23), "softmax": np.arange(23) % 3}.get(
        loss, random.standard_normal(23)
    )
    y = np.round(y, 1) + 0.05 if loss == "cox" else y  # with ties
    data = ClientData(x, y.astype(float), np.array([0, 5, 14, 23]), random.random(23) + 0.5 if weighted else None)
    return TaskData(data, Linear(3, 3 if loss == "softmax" else 1, site_bias=site_bias), all_losses()[loss]())


@pytest.mark.parametrize(("loss", "weighted"), [(loss, bool(one)) for loss, all_ in CASES.items() for one in all_])
def test_sums_equal_those_of_single_gradients(loss, weighted):
    task = task_of(loss, weighted)
    data, weights = task.training, task.training.weights("examples")
    w = 0.3 * np.random.default_rng(0).standard_normal(task.model.layout.size)
    columns = np.array([0, 2, 3])
    rows, clients = score_products_of(data, weights, task.model, task.loss, w, columns).unpacked()

    def gradient(part: ClientData) -> np.ndarray:
        return risk_of(part, np.ones(1), task.model, task.loss)(w[None]).gradient[0, columns]

    by_client = [weights[m] * gradient(data.client(m)) for m in range(data.clients)]
    np.testing.assert_allclose(clients, sum(np.outer(u, u) for u in by_client), rtol=1e-9, atol=1e-15)
    if loss == "cox":
        return  # a row has no loss of its own; test_score_residuals
    relative = np.ones(23) if data.relative_weights is None else data.relative_weights
    total = 0
    for i in range(23):
        m = data.owners[i]
        row = ClientData(data.x[i : i + 1], data.y[i : i + 1], np.array([0, 1]))
        u = weights[m] / data.sizes[m] * relative[i] * gradient(row)
        total = total + np.outer(u, u)
    np.testing.assert_allclose(rows, total, rtol=1e-9, atol=1e-15)


def test_score_residuals():
    """Residuals of a Cox model agree with their definition; their sum is the gradient of the client."""
    task = task_of("cox")
    data, w = task.training.client(2), np.array([0.4, -0.7, 0.2, 0.0])
    columns = np.arange(3)
    rows, _ = score_products_of(data, np.ones(1), task.model, task.loss, w, columns).unpacked()
    e, times, events = np.exp(data.x @ w[:3]), np.abs(data.y), data.y > 0
    residuals = np.zeros((len(e), 3))
    for k in np.flatnonzero(events):
        at_risk = (times >= times[k])[:, None]
        mean = (at_risk * e[:, None] * data.x).sum(axis=0) / (at_risk[:, 0] * e).sum()
        residuals[k] -= data.x[k] - mean
        residuals += at_risk * e[:, None] * (data.x - mean) / (at_risk[:, 0] * e).sum()
    residuals /= len(e)
    np.testing.assert_allclose(rows, residuals.T @ residuals, rtol=1e-10)
    gradient = risk_of(data, np.ones(1), task.model, task.loss)(w[None]).gradient[0, :3]
    np.testing.assert_allclose(residuals.sum(axis=0), gradient, rtol=1e-10, atol=1e-15)


def test_site_biases_leave_efficient_scores():
    """Products of a model with an indicator per client, after elimination of the indicators."""
    task = task_of("logistic", site_bias=True)
    data, weights = task.training, task.training.weights("examples")
    problem = task.to_problem(all_regularizers()["none"](), weighting="examples")
    w, columns = np.array([0.3, -0.2, 0.1, 0.0]), np.arange(3)
    rows, clients = score_products_of(data, weights, task.model, task.loss, w, columns).unpacked()
    bias = problem.site_biases(w[None])[:, 0]
    p = 1 / (1 + np.exp(-(data.x @ w[:3] + bias[data.owners])))
    own = np.eye(3)[data.owners]
    v = p * (1 - p)
    centered = data.x - own @ (own.T @ (v[:, None] * data.x) / (own.T @ v)[:, None])
    u = (p - data.y)[:, None] * centered / len(p)
    np.testing.assert_allclose(rows, u.T @ u, rtol=1e-9)
    sums = own.T @ u
    np.testing.assert_allclose(clients, sums.T @ sums, rtol=1e-9, atol=1e-12)


@pytest.mark.ci
@pytest.mark.machine_code
@pytest.mark.parametrize("loss", ["logistic", "softmax", "cox"])
def test_sites_give_the_bits_of_the_simulation(loss):
    task = task_of(loss)
    data, w = task.training, 0.2 * np.ones(task.model.layout.size)
    products = score_products_of(data, data.weights("examples"), task.model, task.loss, w)
    for matrix in products.unpacked():
        assert np.linalg.eigvalsh(matrix).min() > -1e-12
    by_site = [
        score_products_of(data.client(m), data.weights("examples")[m : m + 1], task.model, task.loss, w)
        for m in range(data.clients)
    ]
    added = by_site[0].rows
    for one in by_site[1:]:
        added = added + one.rows
    np.testing.assert_array_equal(added, products.rows)
    np.testing.assert_array_equal(sum(one.clients for one in by_site), products.clients)
