"""Tests of histograms of predictions against scikit-learn, statsmodels and direct formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn import metrics
from statsmodels.stats.proportion import proportion_confint

from fco_cli.federation.metrics import BINS, SUMS
from fco_cli.path.predictions import (
    Predictions,
    by_client,
    calibration_groups,
    net_benefit,
    prediction_lines,
    roc_curve,
    wilson_interval,
)
from fco_cli.problem.losses import Logistic


@pytest.fixture
def rows():
    """Return scores and labels of 400 rows; some scores are tied or far out."""
    random = np.random.default_rng(3)
    scores = np.concatenate([random.normal(0, 2, 380), np.zeros(10), np.full(5, 60.0), np.full(5, -60.0)])
    return scores, random.random(400) < expit(scores)


def test_the_roc_curve_is_that_of_scikit_learn(rows):
    scores, positive = rows
    binned = np.minimum((expit(scores) * BINS).astype(int), BINS - 1)
    curve = roc_curve(Predictions.of_scores(scores, positive))
    expected = metrics.roc_curve(positive, binned, drop_intermediate=False)
    np.testing.assert_allclose(curve.false_positive, expected[0], atol=1e-15)
    np.testing.assert_allclose(curve.true_positive, expected[1], atol=1e-15)
    assert curve.area == pytest.approx(metrics.roc_auc_score(positive, binned), abs=1e-14)
    assert curve.area == pytest.approx(metrics.roc_auc_score(positive, scores), abs=2e-3)


@pytest.mark.parametrize("positive", [np.zeros(5, bool), np.ones(5, bool)])
def test_rows_of_one_class_have_no_curve(positive):
    assert roc_curve(Predictions.of_scores(np.arange(5.0), positive)) is None


def test_net_benefit_equals_the_count_over_rows(rows):
    scores, positive = rows
    curves = net_benefit(Predictions.of_scores(scores, positive))
    for t, model, everyone in zip(*curves.values(), strict=True):
        treated = expit(scores) >= t
        expected = ((treated & positive).sum() - t / (1 - t) * (treated & ~positive).sum()) / len(scores)
        assert model == pytest.approx(expected, abs=1e-12)
        assert everyone == pytest.approx(positive.mean() - t / (1 - t) * (~positive).mean(), abs=1e-12)


def test_intervals_are_those_of_statsmodels():
    events, counts = np.array([0, 1, 7, 10, 250]), np.array([10, 10, 10, 10, 1000])
    expected = proportion_confint(events, counts, method="wilson")
    np.testing.assert_allclose(wilson_interval(events, counts), expected, atol=1e-12)


def test_groups_of_a_calibration_plot_add_up(rows):
    predictions = Predictions.of_scores(*rows)
    groups = calibration_groups(predictions)
    assert sum(line["rows"] for line in groups) == 400
    assert sum(line["events"] for line in groups) == rows[1].sum()
    mean = sum(line["rows"] * line["predicted"] for line in groups) / 400
    assert mean == pytest.approx(expit(rows[0]).mean(), abs=1 / BINS)
    assert all(line["low"] <= line["observed"] <= line["high"] for line in groups)


def test_histograms_of_sites_are_those_of_rows(rows):
    scores, positive = rows
    (sums,) = SUMS[Logistic].of_rows(scores[None], positive.astype(float))
    sent, own = Predictions.of_sums(sums), Predictions.of_scores(scores, positive)
    np.testing.assert_array_equal([sent.negatives, sent.positives], [own.negatives, own.positives])


def test_lines_of_a_record_keep_the_counts(rows):
    scores, positive = rows
    owners = np.arange(400) % 3
    clients = by_client(scores, positive, owners, ["a", "b", "c"])
    lines = [line for line in prediction_lines(clients, choice="min") if line["client"] == "b"]
    read = Predictions.of_lines(
        *(np.array([line[name] for line in lines]) for name in ("bin", "negatives", "positives"))
    )
    assert read.rows == (owners == 1).sum()
    assert read.events == positive[owners == 1].sum()
    total = sum(list(clients.values())[1:], clients["a"])
    np.testing.assert_array_equal(total.positives, Predictions.of_scores(scores, positive).positives)
