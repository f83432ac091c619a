"""Metrics of `Loss.metrics` on held-out rows, from sums over each site's rows of a size independent of the rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fco_cli.data.statistics import Moments
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import TINY, Huber, Logistic, Loss, Poisson, Squared
from fco_cli.problem.losses.survival import Cox, count_pairs

BINS = 512  # of the histogram of predicted probabilities, equally wide


class Sums(NamedTuple):
    """Sums of a site [J, k] from scores [J, N] and labels [N], and metrics from the sums of all sites [M, J, k]."""

    width: int  # k
    of_rows: Callable[[Array, Array], Array]
    metrics: Callable[[Array, Array], dict[str, Array]]  # arguments: sums and numbers of held-out rows [M]
    is_valid: Callable[[Array, int], Array]  # finite sums [J, k] and the number of rows -> [J]
    histogram: bool = False
    additive: bool = True  # false: metrics need every site's sums, not their total


# `scipy.special` has both functions, but its import would slow the start of every site's process.


def _probability(scores: Array) -> Array:
    return np.exp(-np.logaddexp(0, -scores))


def _entropy(y: Array) -> Array:
    """Return y log y."""
    return y * np.log(np.where(y > 0, y, 1))


def _squares(scores: Array, y: Array) -> Array:
    labels = Moments.of(y[:, None])
    moments = np.array([labels.mean[0], labels.deviations[0]])
    return np.column_stack([((scores - y) ** 2).sum(axis=1), np.tile(moments, (len(scores), 1))])


def _rmse_and_r2(sums: Array, rows: Array) -> dict[str, Array]:
    sites = [Moments(np.full(len(one), count), one[:, 1], one[:, 2]) for one, count in zip(sums, rows, strict=True)]
    total = functools.reduce(Moments.merge, sites)
    squared = sums[:, :, 0].sum(axis=0) / total.count
    return {"rmse": np.sqrt(squared), "r2": 1 - squared / np.maximum(total.deviations / total.count, TINY)}


def _absolute(scores: Array, y: Array) -> Array:
    return np.abs(scores - y).sum(axis=1)[:, None]


def _mae(sums: Array, rows: Array) -> dict[str, Array]:
    return {"mae": sums[:, :, 0].sum(axis=0) / rows.sum()}


def _deviances(scores: Array, y: Array) -> Array:
    of_labels = np.array([_entropy(y).sum(), y.sum()])
    parts = [np.exp(scores).sum(axis=1), (y * scores).sum(axis=1)]
    return np.column_stack([*parts, np.tile(of_labels, (len(scores), 1))])


def _d2(sums: Array, rows: Array) -> dict[str, Array]:
    predicted, product, ideal, mean = np.moveaxis(sums.sum(axis=0) / rows.sum(), 1, 0)
    deviance, null_deviance = ideal - mean + predicted - product, ideal - _entropy(mean)
    return {"d2": 1 - deviance / np.maximum(null_deviance, TINY)}


def _histogram(scores: Array, y: Array) -> Array:
    """Return the histograms of the predicted probability of negative, then positive rows [J, 2 BINS]."""
    bins = np.minimum((_probability(scores) * BINS).astype(int), BINS - 1)
    indices = bins + BINS * (y > 0.5)
    return np.stack([np.bincount(job, minlength=2 * BINS) for job in indices]).astype(float)


def _auc(sums: Array, rows: Array) -> dict[str, Array]:
    """Return the AUC; pairs in one bin count as ties, so the error is at most half the share of such pairs."""
    counts = sums.sum(axis=0).reshape(-1, 2, BINS)
    negative, positive = counts[:, 0], counts[:, 1]
    below = np.cumsum(negative, axis=1) - negative
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    won = (positive * (below + negative / 2)).sum(axis=1)
    return {"auc": np.where(pairs > 0, won / np.maximum(pairs, 1), 0.5)}


def _pairs(scores: Array, y: Array) -> Array:
    """Return the numbers of concordant and comparable pairs of the site's rows (`Cox.metrics`)."""
    pairs = np.zeros((len(scores), 2))
    for job, own in zip(scores, pairs, strict=True):
        count_pairs(job, y, np.array([0, len(y)]), own)
    return pairs


def _concordance(sums: Array, rows: Array) -> dict[str, Array]:
    concordant, comparable = np.moveaxis(sums.sum(axis=0), 1, 0)
    return {"concordance": np.where(comparable > 0, concordant / np.maximum(comparable, 1), 0.5)}


def _are_squares(sums: Array, rows: int) -> Array:
    return (sums[:, 0] >= 0) & (sums[:, 2] >= 0)


def _are_absolute(sums: Array, rows: int) -> Array:
    return np.asarray((sums >= 0).all(axis=1))


def _are_deviances(sums: Array, rows: int) -> Array:
    return np.asarray((sums[:, [0, 2, 3]] >= 0).all(axis=1))


def _is_histogram(sums: Array, rows: int) -> Array:
    return (sums >= 0).all(axis=1) & (sums == np.floor(sums)).all(axis=1) & (sums.sum(axis=1) == rows)


def _are_pairs(sums: Array, rows: int) -> Array:
    return (sums[:, 0] >= 0) & (sums[:, 0] <= sums[:, 1]) & (sums[:, 1] <= rows * (rows - 1) / 2)


SUMS: dict[type[Loss], Sums] = {
    Squared: Sums(3, _squares, _rmse_and_r2, _are_squares, additive=False),
    Huber: Sums(1, _absolute, _mae, _are_absolute),
    Poisson: Sums(4, _deviances, _d2, _are_deviances),
    Logistic: Sums(2 * BINS, _histogram, _auc, _is_histogram, histogram=True),
    Cox: Sums(2, _pairs, _concordance, _are_pairs),
}
