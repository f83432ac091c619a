"""Out-of-sample metrics of the selected models, over all rows and by client.

All rows are in this process; `site_metrics` computes the same metrics from sums and histograms of sites.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import rankdata

from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

ALL_CLIENTS = "all clients"
BINS = 10
MetricRow = dict[str, Any]


def client_metrics(loss: Loss, scores: Array, y: Array, owners: Array, names: list[str]) -> list[MetricRow]:
    """Return the metrics of all rows, then those of every client, from scores [C, N]."""
    table = [{"client": ALL_CLIENTS, **metrics_of(loss, scores, y)}]
    for m in np.unique(owners):
        own = owners == m
        table.append({"client": names[m], **metrics_of(loss, scores[:, own], y[own])})
    return table


def metrics_of(loss: Loss, scores: Array, y: Array) -> MetricRow:
    """Return the metrics of a set of rows; standard errors are those of means over rows."""
    if loss.client_loss is not None:  # the loss is not a sum over rows
        return {"rows": len(y), **loss.metrics(scores[0].astype(float), y.astype(float), np.array([0, len(y)]))}
    losses = np.array([loss.value.as_python(scores[:, i], y[i]) for i in range(len(y))], dtype=float)
    line: MetricRow = {"rows": len(y), "loss": float(losses.mean()), "loss_error": _standard_error(losses)}
    if len(scores) > 1:
        return line | {"accuracy": float((scores.argmax(axis=0) == y).mean())}
    score = scores[0].astype(float)
    if loss.classification:
        positive = y > 0.5
        line |= {"observed": float(positive.mean()), "predicted": float(expit(score).mean())}
        if 0 < positive.sum() < len(y):
            area, error = area_and_error(score, positive)
            line |= {"auc": area, "auc_error": error, **calibration(score, positive)}
        return line
    loss_metrics = loss.metrics(score, y.astype(float), np.array([0, len(y)]))
    return line | {name: value for name, value in loss_metrics.items() if len(y) > 2}


def _standard_error(values: Array) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def area_and_error(scores: Array, positive: Array) -> tuple[float, float | None]:
    """Return the area under the ROC curve and its standard error (DeLong et al., 1988)."""
    positives, negatives = scores[positive], scores[~positive]
    ranks = rankdata(np.concatenate([positives, negatives]))
    a, b = len(positives), len(negatives)
    above = (ranks[:a] - rankdata(positives)) / b  # share of negatives below each positive row
    below = 1 - (ranks[a:] - rankdata(negatives)) / a  # share of positives above each negative row
    if min(a, b) < 2:
        return float(above.mean()), None
    return float(above.mean()), float(np.sqrt(above.var(ddof=1) / a + below.var(ddof=1) / b))


def calibration(scores: Array, positive: Array) -> dict[str, float | None]:
    """Return the slope and the intercept of logistic recalibration (Cox, 1958).

    The slope is 1 if the scores are calibrated; it is None if the rows are separable. The intercept is fitted with
    slope 1; it is 0 if the mean prediction is right.
    """

    def loss_and_gradient(line: Array) -> tuple[float, Array]:
        fitted = line[0] + line[1] * scores
        residual = expit(fitted) - positive
        value = np.logaddexp(0, fitted).mean() - (positive * fitted).mean()
        return float(value), np.array([residual.mean(), (residual * scores).mean()])

    def loss_at_slope_1(line: Array) -> tuple[float, Array]:
        value, gradient = loss_and_gradient(np.array([line[0], 1.0]))
        return value, gradient[:1]

    if not np.ptp(scores) > 0:
        return {"calibration_intercept": None, "calibration_slope": None}
    both = minimize(loss_and_gradient, [0.0, 1.0], jac=True, method="BFGS", options={"gtol": 1e-8})
    intercept = minimize(loss_at_slope_1, [0.0], jac=True, method="BFGS", options={"gtol": 1e-8})
    is_finite = bool(np.abs(both.x).max() < 100)
    return {
        "calibration_intercept": float(intercept.x[0]),
        "calibration_slope": float(both.x[1]) if is_finite else None,
    }


def calibration_bins(scores: Array, positive: Array) -> list[MetricRow]:
    """Return the number of rows, the mean prediction and the observed frequency by decile of the predictions."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return [
        {"rows": len(part), "predicted": float(expit(scores[part]).mean()), "observed": float(positive[part].mean())}
        for part in parts
    ]
