"""Tests of out-of-sample metrics, against scikit-learn and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from fco_cli.path.performance import area_and_error, calibration, calibration_bins, client_metrics, metrics_of
from fco_cli.problem.losses import all_losses


@pytest.fixture
def scored():
    random = np.random.default_rng(0)
    scores = random.standard_normal(400).round(1)  # with ties
    return scores, (random.random(400) < expit(0.5 + 2 * scores)).astype(float)


def test_metrics_of_a_logistic_model(scored):
    scores, y = scored
    line = metrics_of(all_losses()["logistic"](), scores[None], y)
    np.testing.assert_allclose(line["loss"], log_loss(y, expit(scores)))
    np.testing.assert_allclose(line["auc"], roc_auc_score(y, scores))
    np.testing.assert_allclose([line["observed"], line["predicted"]], [y.mean(), expit(scores).mean()])
    free = LogisticRegression(C=1e12, tol=1e-10).fit(scores[:, None], y)
    np.testing.assert_allclose(line["calibration_slope"], free.coef_[0, 0], rtol=1e-4)


def test_the_intercept_is_that_at_slope_1(scored):
    """The mean prediction is right once the intercept is added."""
    scores, y = scored
    shift = calibration(scores, y > 0.5)["calibration_intercept"]
    np.testing.assert_allclose(expit(scores + shift).mean(), y.mean(), atol=1e-6)


def test_the_standard_error_of_the_auc_is_its_deviation_over_samples():
    random = np.random.default_rng(1)
    areas, errors = [], []
    for _ in range(400):
        positive = np.arange(120) < 50
        area, error = area_and_error(random.standard_normal(120) + 1.0 * positive, positive)
        areas.append(area)
        errors.append(error)
    assert 0.8 < np.mean(errors) / np.std(areas) < 1.25


def test_clients_with_one_class_have_no_auc(scored):
    scores, y = scored
    owners = np.repeat([0, 1], 200)
    y[:200] = 1
    everybody, one, other = client_metrics(all_losses()["logistic"](), scores[None], y, owners, ["one", "other"])
    assert (everybody["client"], one["client"], other["client"]) == ("all clients", "one", "other")
    assert "auc" not in one
    np.testing.assert_allclose(other["auc"], roc_auc_score(y[200:], scores[200:]))
    assert (everybody["rows"], one["rows"]) == (400, 200)


def test_concordance_is_that_of_rows_of_one_client():
    """Clients have their own baseline hazards, so that rows of different clients are not comparable."""
    scores, times = np.array([2.0, 1.0, 1.0, 2.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0, -9.0])
    lines = client_metrics(all_losses()["cox"](), scores[None], times, np.array([0, 0, 1, 1, 2]), ["a", "b", "c"])
    expected = [("all clients", 5, 0.5), ("a", 2, 1.0), ("b", 2, 0.0), ("c", 1, None)]
    assert [(line["client"], line["rows"], line.get("concordance")) for line in lines] == expected


def test_separable_rows_have_no_slope():
    scores = np.linspace(-1, 1, 20)
    assert calibration(scores, scores > 0)["calibration_slope"] is None
    assert calibration(np.ones(4), np.array([True, False, True, False]))["calibration_slope"] is None


def test_metrics_of_squared_and_softmax_models():
    random = np.random.default_rng(0)
    y, scores = random.standard_normal(30), random.standard_normal(30)
    line = metrics_of(all_losses()["squared"](), scores[None], y)
    np.testing.assert_allclose([line["loss"], line["r2"]], [((y - scores) ** 2).mean(), r2_score(y, scores)])
    classes = random.integers(3, size=30).astype(float)
    several = random.standard_normal((3, 30))
    line = metrics_of(all_losses()["softmax"](), several, classes)
    shares = np.exp(several) / np.exp(several).sum(axis=0)
    np.testing.assert_allclose(line["loss"], log_loss(classes, shares.T, labels=[0, 1, 2]))
    np.testing.assert_allclose(line["accuracy"], (several.argmax(axis=0) == classes).mean())


def test_calibration_by_decile(scored):
    scores, y = scored
    bins = calibration_bins(scores, y > 0.5)
    assert [one["rows"] for one in bins] == [40] * 10
    predicted = [one["predicted"] for one in bins]
    assert predicted == sorted(predicted)
    np.testing.assert_allclose(np.mean([one["observed"] for one in bins]), y.mean())


def test_separable_rows_have_neither_slope_nor_error():
    """Newton's method would end at a slope of 20 or so, DeLong's estimate at an error of 0."""
    scores, positive = np.array([-2.0, -1, 0, 0.5, 1, 3]), np.array([False, False, False, False, True, True])
    for sign in (1, -1):
        line = metrics_of(all_losses()["logistic"](), sign * scores[None], positive.astype(float))
        assert line["auc"] == (1 if sign > 0 else 0)
        assert line["auc_error"] is None
        assert line["calibration_slope"] is None
        assert line["calibration_intercept"] is not None
    touching = metrics_of(all_losses()["logistic"](), np.array([[-1.0, 0, 0, 1]]), np.array([0.0, 0, 1, 1]))
    assert touching["calibration_slope"] is None


def test_the_area_over_all_rows_mixes_clients():
    """Scores that know only the client have an AUC within clients of 1/2."""
    random = np.random.default_rng(2)
    owners = np.repeat([0, 1, 2], [100, 60, 40])
    y = (random.random(200) < np.array([0.1, 0.5, 0.9])[owners]).astype(float)
    names, loss = ["a", "b", "c"], all_losses()["logistic"]()
    whole, *_ = client_metrics(loss, owners[None].astype(float), y, owners, names)
    assert whole["auc"] > 0.75
    assert whole["auc_within"] == 0.5
    scores = random.standard_normal(200) + y
    whole, *own = client_metrics(loss, scores[None], y, owners, names)
    pairs = [(y[owners == m] > 0.5).sum() * (y[owners == m] < 0.5).sum() for m in range(3)]
    np.testing.assert_allclose(whole["auc_within"], np.average([line["auc"] for line in own], weights=pairs))
    (alone, _) = client_metrics(loss, scores[None], y, 0 * owners, names)
    assert "auc_within" not in alone
