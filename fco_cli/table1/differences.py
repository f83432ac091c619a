"""Differences of a column between clients: standardized mean differences and tests."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import stats

from fco_cli.problem.layout import Array


def number_difference(counts: Array, means: Array, deviations: Array) -> tuple[float | None, float | None]:
    """Return the mean standardized difference of two clients, and the p-value of an analysis of variance.

    `deviations` [M] are sums of squared deviations from the means.
    """
    used = counts > 1
    counts, means, deviations = counts[used], means[used], deviations[used]
    if len(counts) < 2 or not np.isfinite(deviations).all():
        return None, None
    variances = deviations / (counts - 1)
    pooled = np.array([(variances[a] + variances[b]) / 2 for a, b in combinations(range(len(counts)), 2)])
    distances = np.array([abs(means[a] - means[b]) for a, b in combinations(range(len(counts)), 2)])
    smd = float(np.mean(distances / np.sqrt(pooled))) if (pooled > 0).all() else None
    within, degrees = deviations.sum(), int(counts.sum()) - len(counts)
    between = counts @ (means - counts @ means / counts.sum()) ** 2
    if degrees < 1 or not within > 0:
        return smd, None
    statistic = between / (len(counts) - 1) / (within / degrees)
    return smd, float(stats.f.sf(statistic, len(counts) - 1, degrees))


def category_difference(counts: Array) -> tuple[float | None, float | None]:
    """Return the mean standardized difference of two clients (Yang and Dalton, 2012), and a chi-squared p-value.

    `counts` [C, M] are rows by category and client, without missing values.
    """
    table = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0].astype(float)
    if min(table.shape) < 2:
        return None, None
    shares = (table / table.sum(axis=0))[1:]  # of all categories but the first
    distances = [_distance(shares[:, a], shares[:, b]) for a, b in combinations(range(table.shape[1]), 2)]
    p = float(stats.chi2_contingency(table, correction=False).pvalue)
    return (float(np.mean(distances)) if np.isfinite(distances).all() else None), p


def _distance(one: Array, other: Array) -> float:
    """Return the Mahalanobis distance of two vectors of shares; NaN if it is infinite."""
    covariance = sum(np.diag(share) - np.outer(share, share) for share in (one, other)) / 2
    difference = one - other
    solution = np.linalg.pinv(covariance, hermitian=True) @ difference
    is_finite = np.allclose(covariance @ solution, difference, atol=1e-10)
    return float(np.sqrt(max(0.0, difference @ solution))) if is_finite else float("nan")
