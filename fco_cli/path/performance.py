"""Out-of-sample metrics of the selected models, over all rows and by client.

They are computed from rows in this process, or from sums and histograms that sites send: scores of a logistic model are
sent as histograms, and every row gets the score at the center of its bin.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import rankdata

from fco_cli.algorithms.rounds import from_fixed_point, to_fixed_point
from fco_cli.federation.coordinator.responses import SiteMetrics
from fco_cli.federation.metrics import BINS, SUMS
from fco_cli.path.predictions import ALL_CLIENTS, Predictions, calibration_lines, prediction_lines
from fco_cli.problem.held_out import difference_losses
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.losses.survival import Cox, count_pairs
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import DataRisk, QuadraticRisk, ordered_sum

CALIBRATION_BINS = 10
NEWTON_STEPS, LARGEST_CALIBRATION = 100, 100.0  # larger weights: the rows are separable
MetricRow = dict[str, Any]


def validation_losses(problem: Problem, models: Array, bits: int | None) -> Array:
    """Return the losses [J] of models on the held-out rows, computed by rows as sites do, not from second moments.

    Those of a loss that is not a sum over rows are differences (`problem/held_out.py`). With `bits`, the clients'
    losses are added in fixed point, as with masks.
    """
    held_out, risk = problem.held_out, problem.validation
    assert held_out is not None
    assert risk is not None
    weights = held_out.weights(problem.weighting)
    if problem.loss.client_loss is not None:
        return _sum_of_losses([_difference_losses(problem, m, models) for m in range(held_out.clients)], bits)
    if bits is not None and not problem.model.site_bias:
        return _sum_of_losses(
            [
                np.maximum(DataRisk(held_out.client(m), weights[m : m + 1], problem.model, problem.loss)(
                    models, gradient=False).value, 0)
                for m in range(held_out.clients)
            ],
            bits,
        )  # fmt: skip
    if isinstance(risk, QuadraticRisk):
        risk = DataRisk(held_out, weights, problem.model, problem.loss)
    return risk(models, gradient=False).value


def _difference_losses(problem: Problem, m: int, models: Array) -> Array:
    """Return the weighted losses [J] of the held-out rows of their m-th client."""
    held_out = problem.held_out
    assert held_out is not None
    place = -1 if held_out.trained_as is None else int(held_out.trained_as[m])
    training = None if place < 0 else problem.data.client(place)
    weight = float(held_out.weights(problem.weighting)[m])
    return difference_losses(training, held_out.client(m), weight, problem.model, problem.loss, models)


def _sum_of_losses(by_client: list[Array], bits: int | None) -> Array:
    """Return the sum [J] over the clients; with `bits`, that of fixed-point numbers, NaN if one is out of range."""
    if bits is None:
        return ordered_sum(np.stack(by_client))
    total, fits = np.zeros(len(by_client[0]), np.int64), np.ones(len(by_client[0]), bool)
    for losses in by_client:
        integers, in_range = to_fixed_point({"value": losses}, bits, len(by_client))
        total, fits = total + integers["value"], fits & in_range
    return np.where(fits, from_fixed_point(total, bits), np.nan)


def client_metrics(loss: Loss, scores: Array, y: Array, owners: Array, names: list[str]) -> list[MetricRow]:
    """Return the metrics of all rows, then those of every client, from scores [C, N]."""
    by_client = []
    for m in np.unique(owners):
        own = owners == m
        by_client.append({"client": names[m], **metrics_of(loss, scores[:, own], y[own])})
    return [{"client": ALL_CLIENTS, **metrics_of(loss, scores, y, owners), **area_within(by_client)}, *by_client]


def area_within(by_client: list[MetricRow]) -> MetricRow:
    """Return `auc_within`, the mean of the clients' AUC, weighted by their pairs of a positive and a negative row.

    The AUC over all rows also compares rows of different clients, and can exceed that of every client.
    """
    areas = [line for line in by_client if line.get("auc") is not None]
    pairs = np.array([line["rows"] ** 2 * line["observed"] * (1 - line["observed"]) for line in areas])
    if len(by_client) < 2 or not areas:
        return {}
    return {"auc_within": float(pairs @ [line["auc"] for line in areas] / pairs.sum())}


def metrics_of(loss: Loss, scores: Array, y: Array, owners: Array | None = None) -> MetricRow:
    """Return the metrics of a set of rows; standard errors are those of means over rows.

    A loss that compares rows compares those of the same owner; without owners, all rows have the same one.
    """
    if loss.client_loss is not None:  # the loss is not a sum over rows
        return {"rows": len(y), **_metrics_of_pairs(loss, scores[0], y, np.zeros(len(y)) if owners is None else owners)}
    value = loss.bound_kernel("value").as_python
    losses = np.array([value(scores[:, i], y[i]) for i in range(len(y))], dtype=float)
    line: MetricRow = {"rows": len(y), "loss": float(losses.mean()), "loss_error": _standard_error(losses)}
    if len(scores) > 1:
        return line | {"accuracy": float((scores.argmax(axis=0) == y).mean())}
    score = scores[0].astype(float)
    if loss.classification:
        positive = y > 0.5
        line |= {"observed": float(positive.mean()), "predicted": float(loss.predict(score[:, None]).mean())}
        if 0 < positive.sum() < len(y):
            area, error = area_and_error(score, positive)
            line |= {"auc": area, "auc_error": error, **calibration(score, positive)}
        return line
    loss_metrics = loss.metrics(score, y.astype(float), np.array([0, len(y)]))
    return line | {name: value for name, value in loss_metrics.items() if len(y) > 2}


def _metrics_of_pairs(loss: Loss, scores: Array, y: Array, owners: Array) -> MetricRow:
    """Return the metrics of a loss that compares rows of the same owner; none without comparable rows."""
    order = np.argsort(owners, kind="stable")
    offsets = np.append(np.unique(owners[order], return_index=True)[1], len(y))
    scores, y = scores[order].astype(float), y[order].astype(float)
    if isinstance(loss, Cox):
        pairs = np.zeros(2)
        count_pairs(scores, y, offsets, pairs)
        return {"concordance": float(pairs[0] / pairs[1])} if pairs[1] > 0 else {}
    return dict(loss.metrics(scores, y, offsets))


def _standard_error(values: Array) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def area_and_error(scores: Array, positive: Array) -> tuple[float, float | None]:
    """Return the area under the ROC curve and its standard error (DeLong et al., 1988).

    The error is None with fewer than two rows of a class, and if the scores separate the classes: its estimate is 0.
    """
    positives, negatives = scores[positive], scores[~positive]
    ranks = rankdata(np.concatenate([positives, negatives]))
    a, b = len(positives), len(negatives)
    above = (ranks[:a] - rankdata(positives)) / b  # share of negatives below each positive row
    below = 1 - (ranks[a:] - rankdata(negatives)) / a  # share of positives above each negative row
    if min(a, b) < 2 or is_separable(scores, positive):
        return float(above.mean()), None
    return float(above.mean()), float(np.sqrt(above.var(ddof=1) / a + below.var(ddof=1) / b))


def is_separable(scores: Array, positive: Array) -> bool:
    """Return True if a threshold separates the classes, in either direction; scores at the threshold may be of both."""
    low, high = scores[~positive], scores[positive]
    return bool(low.max() <= high.min() or high.max() <= low.min())


def calibration(scores: Array, positive: Array) -> dict[str, float | None]:
    """Return the slope and the intercept of logistic recalibration (Cox, 1958).

    The slope is 1 if the scores are calibrated; it is None if the scores separate the classes: it is then not
    estimable. The intercept is fitted with slope 1; it is 0 if the mean prediction is right.
    """
    if not np.ptp(scores) > 0:
        return {"calibration_intercept": None, "calibration_slope": None}
    ones = np.ones((len(scores), 1))
    both = _logistic_fit(np.column_stack([ones, scores]), np.array([0.0, 1.0]), np.zeros(len(scores)), positive)
    intercept = _logistic_fit(ones, np.zeros(1), scores, positive)
    is_finite = not is_separable(scores, positive) and bool(np.abs(both).max() < LARGEST_CALIBRATION)
    return {
        "calibration_intercept": float(intercept[0]),
        "calibration_slope": float(both[1]) if is_finite else None,
    }


def _logistic_fit(x: Array, w: Array, offset: Array, positive: Array) -> Array:
    """Return the weights of a logistic regression with few columns, by Newton's method with step halving."""

    def loss(w: Array) -> float:
        fitted = offset + x @ w
        return float(np.logaddexp(0, fitted).mean() - (positive * fitted).mean())

    value = loss(w)
    for _ in range(NEWTON_STEPS):
        predicted = expit(offset + x @ w)
        gradient = x.T @ (predicted - positive) / len(x)
        if np.abs(gradient).max() <= 1e-10 or np.abs(w).max() > LARGEST_CALIBRATION:
            break
        hessian = (x.T * (predicted * (1 - predicted))) @ x / len(x)
        step = -np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        while (trial := loss(w + step)) > value and np.abs(step).max() > 1e-12:
            step = step / 2
        if not trial <= value:
            break
        w, value = w + step, trial
    return w


def calibration_bins(scores: Array, positive: Array) -> list[MetricRow]:
    """Return rows, events, mean prediction and observed frequency with its interval, by decile of the predictions."""
    order = np.argsort(scores, kind="stable")
    parts = [part for part in np.array_split(order, CALIBRATION_BINS) if len(part)]
    rows, events = (
        np.array(counts) for counts in zip(*((len(part), positive[part].sum()) for part in parts), strict=True)
    )
    return calibration_lines(rows, events, np.array([expit(scores[part]).mean() for part in parts]))


def client_metrics_from_sites(
    loss: Loss, folds: list[list[SiteMetrics]], chosen: list[str]
) -> tuple[list[MetricRow], list[MetricRow]]:
    """Return metrics over all rows and by site, and calibration by decile, from the sites' sums of every fold."""
    all_parts = list(chain.from_iterable(folds))
    by_site = {part.site: [one for one in all_parts if one.site == part.site] for part in all_parts if part.site}
    lines, bins = [], []
    for j, name in enumerate(chosen):
        own = [{"client": site, **metrics_from_sites(loss, parts, j)} for site, parts in sorted(by_site.items())]
        whole = {"client": ALL_CLIENTS, **metrics_from_sites(loss, all_parts, j), **area_within(own)}
        lines += [{"choice": name, **line} for line in (whole, *own)]
        if (rows := _rows_of_histogram(loss, all_parts, j)) is not None:
            bins += [{"choice": name, **line} for line in calibration_bins(*rows)]
    return lines, bins


def predictions_from_sites(loss: Loss, folds: list[list[SiteMetrics]], chosen: list[str]) -> list[MetricRow]:
    """Return the histograms of predictions by rule and site; those of all sites together if responses are masked.

    Sites that do not share histograms have none.
    """
    sums, lines = SUMS.get(type(loss)), list[MetricRow]()
    if sums is None or not sums.histogram:
        return lines
    for j, name in enumerate(chosen):
        by_site: dict[str, Predictions] = {}
        for part in chain.from_iterable(folds):
            if part.sums is not None and np.isfinite(part.sums[j]).all():
                site, own = part.site or ALL_CLIENTS, Predictions.of_sums(part.sums[j])
                by_site[site] = by_site[site] + own if site in by_site else own
        lines += prediction_lines(dict(sorted(by_site.items())), choice=name)
    return lines


def metrics_from_sites(loss: Loss, parts: list[SiteMetrics], j: int) -> MetricRow:
    """Return the metrics of the j-th model over the rows of all `parts`."""
    rows = np.array([part.rows for part in parts])
    count = int(rows.sum())
    line: MetricRow = {"rows": count}
    if loss.client_loss is None:
        mean = float((rows * [part.loss[j] for part in parts]).sum() / count)
        line |= {"loss": mean, "loss_error": None}
        known = [part.squares[j] for part in parts if part.squares is not None]
        if count > 1 and len(known) == len(parts):
            squares = float((rows * known).sum() / count)
            line["loss_error"] = float(np.sqrt(max(squares - mean**2, 0.0) / (count - 1)))
    if (histogram := _rows_of_histogram(loss, parts, j)) is not None:
        return line | _classification_metrics(*histogram)
    if loss.classification:
        hits = [part.hits[j] for part in parts if part.hits is not None]
        return line | ({"accuracy": float(sum(hits) / count)} if len(hits) == len(parts) else {})
    sums = [part.sums[None, j] for part in parts if part.sums is not None]
    if len(sums) < len(parts) or count < 3:
        return line
    if isinstance(loss, Cox) and not sum(one[0, 1] for one in sums):  # no comparable pairs
        return line
    return line | {name: float(values[0]) for name, values in SUMS[type(loss)].metrics(np.stack(sums), rows).items()}


def _classification_metrics(scores: Array, positive: Array) -> MetricRow:
    """Return event rates, AUC and calibration of scores and binary labels."""
    line: MetricRow = {"observed": float(positive.mean()), "predicted": float(expit(scores).mean())}
    if 0 < positive.sum() < len(positive):
        area, error = area_and_error(scores, positive)
        line |= {"auc": area, "auc_error": error, **calibration(scores, positive)}
    return line


def _rows_of_histogram(loss: Loss, parts: list[SiteMetrics], j: int) -> tuple[Array, Array] | None:
    """Return scores and labels of the rows in the parts' histograms; None if the loss or a site has no histogram."""
    sums = SUMS.get(type(loss))
    if sums is None or not sums.histogram or any(part.sums is None for part in parts):
        return None
    counts = np.sum([part.sums[j] for part in parts if part.sums is not None], axis=0).astype(int)
    centers = logit((np.arange(BINS) + 0.5) / BINS)
    return np.repeat(np.tile(centers, 2), counts), np.repeat([False, True], [counts[:BINS].sum(), counts[BINS:].sum()])
