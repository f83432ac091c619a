"""How chosen models do on rows that they have not learnt from: all together, and at every client.

A client computes its own line from its own rows and sends numbers. The line of all clients needs every row's score
here; a federation would send histograms of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import rankdata

from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss

EVERYBODY = "all clients"
BINS = 10
Line = dict[str, Any]


def performance(loss: Loss, scores: Array, y: Array, owners: Array, names: list[str]) -> list[Line]:
    """A line for all rows, then one for every client; scores [C, N]."""
    lines = [{"client": EVERYBODY, **line_of(loss, scores, y)}]
    for m in np.unique(owners):
        own = owners == m
        lines.append({"client": names[m], **line_of(loss, scores[:, own], y[own])})
    return lines


def line_of(loss: Loss, scores: Array, y: Array) -> Line:
    """Of some rows; standard errors are those of means over rows."""
    if loss.together is not None:  # a row has no loss of its own
        return {"rows": len(y), **loss.metrics(scores[0].astype(float), y.astype(float), np.array([0, len(y)]))}
    losses = np.array([loss.value.as_python(scores[:, i], y[i]) for i in range(len(y))], dtype=float)
    line: Line = {"rows": len(y), "loss": float(losses.mean()), "loss_error": _error(losses)}
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
    own = loss.metrics(score, y.astype(float), np.array([0, len(y)]))
    return line | {name: value for name, value in own.items() if len(y) > 2}


def _error(values: Array) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def area_and_error(scores: Array, positive: Array) -> tuple[float, float | None]:
    """The area under the ROC curve and its standard error (DeLong et al., 1988)."""
    ahead, behind = scores[positive], scores[~positive]
    ranks = rankdata(np.concatenate([ahead, behind]))
    a, b = len(ahead), len(behind)
    of_ahead = (ranks[:a] - rankdata(ahead)) / b  # the share of the others that each positive row is above
    of_behind = 1 - (ranks[a:] - rankdata(behind)) / a
    if min(a, b) < 2:
        return float(of_ahead.mean()), None
    return float(of_ahead.mean()), float(np.sqrt(of_ahead.var(ddof=1) / a + of_behind.var(ddof=1) / b))


def calibration(scores: Array, positive: Array) -> dict[str, float | None]:
    """Logistic recalibration (Cox, 1958): the slope of the score, 1 if it is right, and the intercept at slope 1, 0 if
    the mean prediction is; none where the rows are separable."""

    def at(line: Array) -> tuple[float, Array]:
        fitted = line[0] + line[1] * scores
        residual = expit(fitted) - positive
        value = np.logaddexp(0, fitted).mean() - (positive * fitted).mean()
        return float(value), np.array([residual.mean(), (residual * scores).mean()])

    def shift(line: Array) -> tuple[float, Array]:
        value, slope = at(np.array([line[0], 1.0]))
        return value, slope[:1]

    if not np.ptp(scores) > 0:
        return {"calibration_intercept": None, "calibration_slope": None}
    both = minimize(at, [0.0, 1.0], jac=True, method="BFGS", options={"gtol": 1e-8})
    alone = minimize(shift, [0.0], jac=True, method="BFGS", options={"gtol": 1e-8})
    known = bool(np.abs(both.x).max() < 100)
    return {"calibration_intercept": float(alone.x[0]), "calibration_slope": float(both.x[1]) if known else None}


def calibration_bins(scores: Array, positive: Array) -> list[Line]:
    """Rows in tenths of their predictions: how many, the mean prediction and the share that came true."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, BINS) if len(part)]
    return [
        {"rows": len(part), "predicted": float(expit(scores[part]).mean()), "observed": float(positive[part].mean())}
        for part in parts
    ]
