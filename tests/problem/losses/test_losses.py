"""Losses: values by formula, slopes by finite differences, and valid labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import logit, xlogy
from sklearn import metrics

from fco_cli.errors import UserError
from fco_cli.problem.losses import Huber, Loss, all_losses
from fco_cli.problem.losses.classification import area_interval
from fco_cli.testing.losses import LOSS_CHECKS, check_machine_code, slope


@dataclass(frozen=True)
class Case:
    """Expected behavior of a loss: formula for the scores [C] of one row, valid labels [N], invalid labels."""

    formula: object
    labels: object
    invalid: tuple
    outputs: int = 1


CASES = {
    "squared": Case(lambda s, y: (s[0] - y) ** 2, lambda random, n: random.standard_normal(n), (np.nan, np.inf)),
    "huber": Case(
        lambda s, y: min(abs(s[0] - y), 1) * (2 * abs(s[0] - y) - min(abs(s[0] - y), 1)),
        lambda random, n: random.standard_normal(n),
        (np.nan, np.inf),
    ),
    "poisson": Case(
        lambda s, y: np.exp(s[0]) - y - y * s[0] + xlogy(y, y),
        lambda random, n: random.poisson(2, n),
        (-1, 0.5, np.inf),
    ),
    "logistic": Case(
        lambda s, y: np.log(1 + np.exp(s[0])) - y * s[0],
        lambda random, n: random.integers(2, size=n),
        (-1, 0.5, 2, np.nan),
    ),
    "softmax": Case(
        lambda s, y: np.log(np.exp(s).sum()) - s[int(y)],
        lambda random, n: np.append(2, random.integers(3, size=n - 1)),
        (-1, 0.5, 10**4, np.nan),
        outputs=3,
    ),
}


def test_every_loss_has_a_case():
    """Losses that are not sums over rows are tested in test_survival.py."""
    ours = {name: kind for name, kind in all_losses().items() if kind.__module__.startswith("fco_cli.")}
    assert set(CASES) == {name for name, kind in ours.items() if kind.client_loss is None}


@pytest.fixture(params=sorted(CASES))
def loss(request) -> Loss:
    return all_losses()[request.param]()


@pytest.fixture
def case(loss) -> Case:
    return CASES[loss.name]


@pytest.fixture
def rows(case):
    """Return scores and label of some rows."""
    random = np.random.default_rng(1)
    labels = case.labels(random, 20).astype(float)
    return [(3 * random.standard_normal(case.outputs), y) for y in labels]


@pytest.mark.parametrize("check", LOSS_CHECKS, ids=lambda check: check.__name__)
def test_registered_losses_pass_all_checks(loss, case, check):
    check(loss, case.labels(np.random.default_rng(3), 20).astype(float))


@pytest.mark.ci
@pytest.mark.machine_code
def test_machine_code(loss, case):
    check_machine_code(loss, case.labels(np.random.default_rng(3), 20).astype(float))


def test_the_value_is_the_formula(loss, case, rows):
    for scores, y in rows:
        np.testing.assert_allclose(
            loss.bound_kernel("value")(scores, y), case.formula(scores, y), rtol=1e-11, atol=1e-13
        )


def test_the_slope_is_the_derivative(loss, case, rows):
    for scores, y in rows:
        nudges = 1e-6 * np.eye(case.outputs)
        expected = [(case.formula(scores + n, y) - case.formula(scores - n, y)) / 2e-6 for n in nudges]
        np.testing.assert_allclose(slope(loss, scores, y), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_extreme_scores_are_stable(name, dtype):
    """A wrong prediction with score 1e4 has loss 1e4 and slope +-1; a correct one has loss 0."""
    loss, size, zero = all_losses()[name](), dtype(1e4), dtype(0)
    if name == "logistic":
        rows = [([size], 1, 0, [0]), ([-size], 0, 0, [0]), ([size], 0, size, [1]), ([-size], 1, size, [-1])]
    else:
        rows = [([size, zero, -size], 0, 0, [0, 0, 0]), ([zero, size, -size], 0, size, [-1, 1, 0])]
    for scores, y, value, slopes in rows:
        scores, y = np.array(scores), dtype(y)
        assert scores.dtype == dtype
        np.testing.assert_allclose(loss.bound_kernel("value")(scores, y), value)
        np.testing.assert_allclose(slope(loss, scores, y), slopes)


def test_hits_are_correct_predictions():
    logistic, softmax = (all_losses()[name]().bound_kernel("is_correct") for name in ("logistic", "softmax"))
    assert [logistic(np.array([s]), y) for s in (2.0, -1.0) for y in (0.0, 1.0)] == [False, True, True, False]
    scores = np.array([1.0, 9.0, 9.0])  # of equal scores, the first is the prediction
    assert [softmax(scores, y) for y in (0.0, 1.0, 2.0)] == [False, True, False]


def test_classification_losses(loss):
    assert loss.classification == (loss.name in ("logistic", "softmax"))


def test_labels(loss, case):
    y = case.labels(np.random.default_rng(0), 50)
    assert loss.accepts_labels(y).all()
    assert loss.outputs(y) == case.outputs
    for wrong in case.invalid:
        np.testing.assert_array_equal(loss.accepts_labels(np.append(y, wrong)), [True] * 50 + [False])
    assert loss.describe_labels()


def test_huber_is_squared_below_delta_and_linear_above():
    squared, huber = all_losses()["squared"]().bound_kernel("value"), Huber(delta=2.5)
    value = huber.bound_kernel("value")
    assert value(np.array([2.4]), 0.0) == squared(np.array([2.4]), 0.0)
    rise = value(np.array([12.0]), 0.0) - value(np.array([11.0]), 0.0)
    assert rise == 2 * 2.5
    assert slope(huber, np.array([-7.0]), 0.0) == -2 * 2.5
    for wrong in (0, -1, np.inf, np.nan):
        with pytest.raises(UserError, match="huber_delta"):
            Huber(delta=wrong)


def test_metrics_agree_with_scikit_learn(loss):
    random = np.random.default_rng(5)
    y, scores = CASES[loss.name].labels(random, 200).astype(float), random.standard_normal(200)
    expected = {
        "squared": lambda: {"rmse": metrics.root_mean_squared_error(y, scores), "r2": metrics.r2_score(y, scores)},
        "huber": lambda: {"mae": metrics.mean_absolute_error(y, scores)},
        "poisson": lambda: {"d2": metrics.d2_tweedie_score(y, np.exp(scores), power=1)},
        "logistic": lambda: {"auc": metrics.roc_auc_score(y, scores)},
        "softmax": dict,
    }[loss.name]
    assert loss.metrics(scores, y, np.array([0, len(y)])) == pytest.approx(expected(), rel=1e-10)


def test_named_classes_bound_the_labels_of_softmax():
    softmax, y = all_losses()["softmax"](), np.array([0, 1, 1])
    assert softmax.outputs(y, classes=5) == 5
    np.testing.assert_array_equal(softmax.accepts_labels(np.array([0, 1, 2]), classes=2), [True, True, False])
    assert not softmax.accepts_labels(np.zeros(3)).any()  # a single class is invalid
    assert softmax.accepts_labels(np.zeros(3), classes=2).all()


def test_intervals_of_areas_are_between_0_and_1():
    low, high = area_interval(np.array([0.8, 0.99, 1, 0, 0.8]), np.array([0.05, 0.05, 0, 0, 0]))
    assert (low >= 0).all()
    assert (high <= 1).all()
    np.testing.assert_allclose(logit([low[0], high[0]]), logit(0.8) + np.array([-1, 1]) * 1.96 * 0.05 / 0.16, rtol=1e-4)
    np.testing.assert_array_equal(low[2:], [1, 0, 0.8])
    np.testing.assert_array_equal(high[2:], [1, 0, 0.8])
    assert area_interval(0.8, 0.05, 0.9)[0] > low[0]
