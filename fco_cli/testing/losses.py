"""Checks of losses: derivatives, labels, predictions; see `check_loss`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.testing.problems import kernels_as_python, make_problem, run_checks, valid_labels

ROWS = 20


def check_loss(loss: Loss, *, labels: Array | None = None, convex: bool = True, compiled: bool = False) -> None:
    """Check a loss that is a sum over rows: value, slope, labels, predictions and the gradient of a problem.

    Parameters
    ----------
    loss
        The loss, with its parameters.
    labels
        Valid labels [20]; by default real numbers, classes or counts, whichever the loss accepts first.
    convex
        If True, check that the loss is convex in the scores.
    compiled
        If True, also compare the machine code with the reference.

    Raises
    ------
    AssertionError
        With the name of the first check that fails.

    Examples
    --------
    >>> from fco_cli.problem.losses import Logistic
    >>> check_loss(Logistic())  # doctest: +SKIP
    """
    assert loss.client_loss is None, f"{loss.name} is not a sum over rows; write separate tests for it"
    with kernels_as_python():
        labels = valid_labels(loss, ROWS) if labels is None else labels
        checks = LOSS_CHECKS if convex else [check for check in LOSS_CHECKS if check is not check_convexity]
        run_checks(type(loss).__name__, checks, loss, labels)
    if compiled:
        run_checks(type(loss).__name__, [check_machine_code], loss, labels)


def value(loss: Loss, scores: Array, y: Any) -> float:
    """Return the loss of one row."""
    return float(loss.bound_kernel("value")(scores, y))


def slope(loss: Loss, scores: Array, y: Any) -> Array:
    """Return the derivatives of the loss of one row with respect to its scores."""
    slopes = scores.copy()
    loss.bound_kernel("slope")(slopes, y)
    return slopes


def _scores(loss: Loss, labels: Array) -> Array:
    return 3 * np.random.default_rng(1).standard_normal((len(labels), loss.outputs(labels)))


def check_slope(loss: Loss, labels: Array) -> None:
    """`slope` is the derivative of `value`."""
    for scores, y in zip(_scores(loss, labels), labels, strict=True):
        steps = 1e-6 * np.eye(len(scores))
        expected = [(value(loss, scores + h, y) - value(loss, scores - h, y)) / 2e-6 for h in steps]
        np.testing.assert_allclose(slope(loss, scores, y), expected, rtol=1e-5, atol=1e-6)


def check_curvature(loss: Loss, labels: Array) -> None:
    """`curvature` is the derivative of `slope`, the upper triangle row by row."""
    if loss.curvature is None:
        return
    for scores, y in zip(_scores(loss, labels), labels, strict=True):
        own = np.empty(len(scores) * (len(scores) + 1) // 2)
        loss.bound_kernel("curvature")(scores, y, own)
        steps = 1e-6 * np.eye(len(scores))
        expected = np.array([(slope(loss, scores + h, y) - slope(loss, scores - h, y)) / 2e-6 for h in steps])
        np.testing.assert_allclose(own, expected[np.triu_indices(len(scores))], rtol=1e-5, atol=1e-6)


def check_convexity(loss: Loss, labels: Array) -> None:
    """The loss is convex in the scores."""
    scores = _scores(loss, labels)
    for a, b, y in zip(scores, scores[::-1], labels, strict=True):
        middle, mean = value(loss, (a + b) / 2, y), (value(loss, a, y) + value(loss, b, y)) / 2
        assert middle <= mean + 1e-10 * (1 + abs(mean)), f"not convex between {a} and {b} at label {y:g}"


def check_divergence_is_preserved(loss: Loss, labels: Array) -> None:
    """NaN scores give a value and slopes that are not finite."""
    for dtype in (np.float64, np.float32):
        scores = np.full(loss.outputs(labels), np.nan, dtype)
        assert not np.isfinite(value(loss, scores, dtype(labels[0]))), "the value of NaN scores is finite"
        assert not np.isfinite(slope(loss, scores, dtype(labels[0]))).any(), "the slope of NaN scores is finite"


def check_labels(loss: Loss, labels: Array) -> None:
    """Valid labels are accepted, NaN and infinity are not, and the valid labels are described."""
    assert loss.accepts_labels(labels).all(), "accepts_labels refuses a valid label"
    for bad in (np.nan, np.inf):
        with_bad = np.append(labels, bad)
        assert not loss.accepts_labels(with_bad)[-1], f"accepts_labels accepts {bad}"
    assert loss.describe_labels(), "describe_labels returns nothing"
    assert loss.outputs(labels) >= 1


def check_predictions(loss: Loss, labels: Array) -> None:
    """`predict` returns finite predictions [N, C], and metrics are numbers."""
    scores = _scores(loss, labels)
    predictions = np.asarray(loss.predict(scores))
    assert predictions.shape[0] == len(labels)
    assert np.isfinite(predictions).all(), "predictions are not finite"
    if scores.shape[1] == 1:
        metrics = loss.metrics(scores[:, 0], np.asarray(labels, float), np.array([0, len(labels)]))
        assert all(np.isscalar(number) for number in metrics.values())


def check_optimal_score(loss: Loss, labels: Array) -> None:
    """No score has a smaller loss than `optimal_score`."""
    if loss.optimal_score is None:
        return
    for y in labels:
        best = float(loss.bound_kernel("optimal_score")(y))
        least = value(loss, np.array([np.clip(best, -30, 30)]), y)
        others = [value(loss, np.array([score]), y) for score in np.linspace(-5, 5, 41)]
        assert least <= min(others) + 1e-9, f"optimal_score is not the minimizer at label {y:g}"


def check_gradient_of_a_problem(loss: Loss, labels: Array) -> None:
    """The gradient of the empirical risk is the derivative of its value."""
    problem = make_problem(loss=loss, labels=labels)
    w = 0.3 * np.random.default_rng(2).standard_normal((1, problem.layout.size))
    gradient = problem.risk(w).gradient[0]
    for k in range(problem.layout.size):
        step = np.zeros_like(w)
        step[0, k] = 1e-5
        difference = (problem.risk(w + step).value - problem.risk(w - step).value)[0] / 2e-5
        np.testing.assert_allclose(gradient[k], difference, rtol=1e-4, atol=1e-6)


LOSS_CHECKS: list[Callable[[Loss, Array], None]] = [
    check_slope,
    check_curvature,
    check_convexity,
    check_divergence_is_preserved,
    check_labels,
    check_predictions,
    check_optimal_score,
    check_gradient_of_a_problem,
]


def check_machine_code(loss: Loss, labels: Array) -> None:
    """Compiled kernels agree with the same kernels run as Python."""
    for scores, y in zip(_scores(loss, labels), labels, strict=True):
        with kernels_as_python():
            expected = value(loss, scores, y), slope(loss, scores, y)
        with kernels_as_python(False):
            np.testing.assert_allclose(value(loss, scores, y), expected[0], rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(slope(loss, scores, y), expected[1], rtol=1e-12, atol=1e-13)
