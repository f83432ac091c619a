"""Scores and gradient of the network, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.products import batch_in_place
from fco_cli.problem.data import ClientData
from fco_cli.problem.descent import Batches, descent
from fco_cli.problem.losses import Softmax
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.models.network import Network

MODEL = Network(7, (6, 5), 3, seed=0)
ROWS = np.array([4, 0, 9, 9, 2, 7, 1])  # more than five rows, one of them twice


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(1)
    return random.standard_normal((10, 7)), random.integers(0, 3, 10).astype(float)


@pytest.fixture(scope="module")
def models() -> np.ndarray:
    """Return the parameters of three jobs, with non-zero biases."""
    w = np.repeat(MODEL.initial()[None], 3, axis=0)
    return w + 0.3 * np.random.default_rng(2).standard_normal(w.shape)


def plain_scores(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the scores [B, C], computed with NumPy."""
    blocks = {block.name: MODEL.layout.view(w[None], block.name)[0] for block in MODEL.layout.blocks}
    for layer in (1, 2):
        x = np.maximum(x @ blocks[f"weights{layer}"].T + blocks[f"bias{layer}"], 0)
    return x @ blocks["weights3"].T + blocks["bias3"]


def test_scores(data, models):
    scores = MODEL.forward(models, batch_in_place(data[0], ROWS), MODEL.widths)
    for j in range(3):
        np.testing.assert_allclose(scores[j].T, plain_scores(models[j], data[0][ROWS]), rtol=1e-12)


def gradient(w, x, y) -> np.ndarray:
    """Return the gradient of the mean loss: the change by a step with rate -1."""
    step = descent(ClientData(x, y, np.array([0, len(y)])), MODEL, Softmax())
    out = np.zeros_like(w)
    step(out, w, Batches(x, y, ROWS, np.array([0, len(ROWS)]), MODEL.widths, 1), 0, -np.ones(len(w)))
    return out


def test_the_gradient_agrees_with_finite_differences(data, models):
    x, y = data

    def loss(w: np.ndarray) -> float:
        scores = plain_scores(w, x[ROWS])
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(ROWS)), y[ROWS].astype(int)]))

    computed = gradient(models, x, y)
    for j in range(3):
        steps = 1e-6 * np.eye(MODEL.layout.size)
        differences = [(loss(models[j] + step) - loss(models[j] - step)) / 2e-6 for step in steps]
        np.testing.assert_allclose(computed[j], differences, atol=1e-8)


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_job_gives_the_same_bits_alone_and_in_a_stack(data, models):
    stacked = gradient(models, *data)
    for j in range(3):
        assert (gradient(models[j : j + 1], *data) == stacked[j]).all()


def test_the_gradient_may_overwrite_the_weights(data, models):
    """As in FedAvg: every layer must use the weights from before the step."""
    step = descent(ClientData(*data, np.array([0, len(data[1])])), MODEL, Softmax())
    w = models.copy()
    step(w, w, Batches(*data, ROWS, np.array([0, len(ROWS)]), MODEL.widths, 1), 0, np.full(3, 0.5))
    np.testing.assert_allclose(w, models - 0.5 * gradient(models, *data), rtol=1e-12, atol=1e-14)


def test_initial_weights_are_glorot_uniform_and_depend_on_the_seed():
    model = Network(300, (200,), 62, seed=3)
    w = model.initial()[None]
    for name, shape in (("weights1", (200, 300)), ("weights2", (62, 200))):
        weights, limit = model.layout.view(w, name)[0], np.sqrt(6 / sum(shape))
        assert weights.shape == shape
        assert limit * 0.99 < np.abs(weights).max() <= limit
        assert abs(weights.std() / (limit / np.sqrt(3)) - 1) < 0.02
    assert (model.layout.view(w, "bias1") == 0).all()
    assert (w == Network(300, (200,), 62, seed=3).initial()).all()
    assert (w != Network(300, (200,), 62, seed=4).initial()).any()


def test_weights_are_regularized_and_biases_are_not():
    assert [(block.name, block.regularized) for block in MODEL.layout.blocks] == [
        ("weights1", True), ("bias1", False), ("weights2", True), ("bias2", False),
        ("weights3", True), ("bias3", False),
    ]  # fmt: skip


def test_a_network_without_hidden_layers_is_the_linear_model(data):
    network, linear = Network(7, (), 3, seed=0), Linear(7, 3)
    w = np.random.default_rng(0).standard_normal((2, linear.layout.size))
    assert network.layout.size == linear.layout.size
    scores = [model.forward(w, batch_in_place(data[0], ROWS), model.widths) for model in (network, linear)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-12)
