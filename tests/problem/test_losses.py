"""Losses by their formulas, their slopes by finite differences, and the step `descend` takes along them."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.losses import Loss

OUTPUTS = {"squared": 1, "logistic": 1, "softmax": 3}


def plain_value(loss, scores, label):
    """The textbook formula for one row with scores [C]."""
    if loss == "squared":
        return (scores[0] - label) ** 2
    if loss == "logistic":
        return np.log(1 + np.exp(scores[0])) - label * scores[0]
    return np.log(np.exp(scores).sum()) - scores[int(label)]


@pytest.fixture(params=sorted(OUTPUTS))
def loss(request):
    return Loss.ALL[request.param]


@pytest.fixture
def scores_and_labels(loss):
    random, outputs = np.random.default_rng(1), OUTPUTS[loss.name]
    scores = 3 * random.standard_normal((2, outputs, 5))  # [J, C, B]
    labels = random.standard_normal(9) if loss.name == "squared" else random.integers(max(outputs, 2), size=9)
    return scores, labels.astype(float), np.array([8, 0, 3, 3, 5])


def test_values_are_the_formulas(loss, scores_and_labels):
    scores, y, rows = scores_and_labels
    expected = [[plain_value(loss.name, scores[j, :, i], y[row]) for i, row in enumerate(rows)] for j in range(2)]
    np.testing.assert_allclose(loss.values(scores, y, rows), expected, rtol=1e-13)


def test_slopes_are_the_derivatives(loss, scores_and_labels):
    scores, y, rows = scores_and_labels
    slopes, step = scores.copy(), 1e-6
    loss.slopes(slopes, y, rows)
    for j, c, i in np.ndindex(scores.shape):
        nudge = np.zeros(scores.shape[1])
        nudge[c] = step
        values = [plain_value(loss.name, scores[j, :, i] + sign * nudge, y[rows[i]]) for sign in (1, -1)]
        np.testing.assert_allclose(slopes[j, c, i], (values[0] - values[1]) / (2 * step), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_extreme_scores_are_stable(name, dtype):
    """A wrong answer with score 1e4 costs 1e4 and has slope +-1; a right one costs nothing."""
    loss, size = Loss.ALL[name], dtype(1e4)
    zero = dtype(0)
    if name == "logistic":
        scores, y = np.array([[[size, -size, size, -size]]]), np.array([1.0, 0, 0, 1], dtype)
    else:
        columns = [[size, zero, -size], [zero, size, -size], [zero, size, -size], [size, zero, -size]]
        scores, y = np.array(columns).T[None], np.array([0.0, 1, 0, 1], dtype)
    values = loss.values(scores, y, np.arange(4))
    np.testing.assert_allclose(values, [[0, 0, size, size]])
    slopes = np.ascontiguousarray(scores)
    loss.slopes(slopes, y, np.arange(4))
    expected = [[[0, 0, 1, -1]]] if name == "logistic" else [[[0, 0, -1, 1], [0, 0, 1, -1], [0, 0, 0, 0]]]
    np.testing.assert_allclose(slopes, expected)


def test_hits_count_the_right_answers():
    rows = np.arange(3)
    scores = np.array([[[2.0, -1, 0.5]], [[-2.0, -1, -3]]])
    np.testing.assert_array_equal(Loss.ALL["logistic"].hits(scores, np.array([1.0, 0, 0]), rows), [2, 2])
    scores = np.array([[[2.0, -1, 0.5], [0, 3, 9], [1, 1, 1]]])
    np.testing.assert_array_equal(Loss.ALL["softmax"].hits(scores, np.array([0.0, 1, 2]), rows), [2])


def test_descend_follows_the_gradient(loss, make_problem):
    """Per job and from any query point, against finite differences of the mean loss of the batch."""
    outputs = OUTPUTS[loss.name]
    problem = make_problem(loss=loss.name, outputs=outputs, features=4)
    random, rows = np.random.default_rng(2), np.array([3, 0, 11, 7, 19, 4, 2])
    query, state = random.standard_normal((2, 2, problem.layout.size))
    x, y = problem.data.x[rows], problem.data.y[rows]

    def mean_loss(w):
        kernel, bias = w[:-outputs].reshape(outputs, -1), w[-outputs:]
        scores = x @ kernel.T + bias
        return np.mean([plain_value(loss.name, s, label) for s, label in zip(scores, y, strict=True)])

    rate, step = np.array([0.1, 0.7]), 1e-6
    before = state.copy()
    problem.descend(state, query, problem.data.x, problem.data.y, rows, problem.model.widths, rate)
    for j in range(2):
        nudges = step * np.eye(problem.layout.size)
        gradient = np.array([mean_loss(query[j] + n) - mean_loss(query[j] - n) for n in nudges]) / (2 * step)
        np.testing.assert_allclose(state[j], before[j] - rate[j] * gradient, rtol=1e-6, atol=1e-8)


def test_descend_may_update_its_own_query(loss, make_problem):
    problem = make_problem(loss=loss.name, outputs=OUTPUTS[loss.name], features=4)
    w = np.random.default_rng(3).standard_normal((3, problem.layout.size))
    data, rows, rate = problem.data, np.arange(8), np.array([0.1, 0.2, 0.3])
    apart, together = w.copy(), w.copy()
    problem.descend(apart, w, data.x, data.y, rows, problem.model.widths, rate)
    problem.descend(together, together, data.x, data.y, rows, problem.model.widths, rate)
    np.testing.assert_array_equal(together, apart)
