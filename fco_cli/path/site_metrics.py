"""Out-of-sample metrics of the selected models from sums that sites send (see `fco_cli.path.performance`).

Scores of a logistic model are sent as histograms; every row gets the score at the center of its bin.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from scipy.special import expit, logit

from fco_cli.federation.coordinator.remote_rows import SiteMetrics
from fco_cli.federation.metrics import BINS, SUMS
from fco_cli.path.performance import ALL_CLIENTS, MetricRow, area_and_error, calibration, calibration_bins
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss


def client_metrics_from_sites(
    loss: Loss, folds: list[list[SiteMetrics]], chosen: list[str]
) -> tuple[list[MetricRow], list[MetricRow]]:
    """Return metrics over all rows and by site, and calibration by decile, from the sites' sums of every fold."""
    all_parts = list(chain.from_iterable(folds))
    by_site = {part.site: [one for one in all_parts if one.site == part.site] for part in all_parts if part.site}
    lines, bins = [], []
    for j, name in enumerate(chosen):
        for client, parts in {ALL_CLIENTS: all_parts, **dict(sorted(by_site.items()))}.items():
            lines.append({"choice": name, "client": client, **metrics_from_sites(loss, parts, j)})
        if (rows := _rows_of_histogram(loss, all_parts, j)) is not None:
            bins += [{"choice": name, **line} for line in calibration_bins(*rows)]
    return lines, bins


def metrics_from_sites(loss: Loss, parts: list[SiteMetrics], j: int) -> MetricRow:
    """Return the metrics of the j-th model over the rows of all `parts`."""
    rows = np.array([part.rows for part in parts])
    count = int(rows.sum())
    line: MetricRow = {"rows": count}
    if loss.client_loss is None:
        mean, squares = (
            float((rows * [getattr(part, name)[j] for part in parts]).sum() / count) for name in ("loss", "squares")
        )
        line |= {"loss": mean, "loss_error": None}
        if count > 1:
            line["loss_error"] = float(np.sqrt(max(squares - mean**2, 0.0) / (count - 1)))
    if (histogram := _rows_of_histogram(loss, parts, j)) is not None:
        return line | _classification_metrics(*histogram)
    if loss.classification:
        return line | {"accuracy": float(sum(part.hits[j] for part in parts if part.hits is not None) / count)}
    sums = [part.sums[None, j] for part in parts if part.sums is not None]
    if len(sums) < len(parts) or count < 3:
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
