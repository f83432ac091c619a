"""How chosen models do where the rows are at sites: the lines of `performance`, from sums that the sites tell.

A logistic model's scores come as histograms, in which a row has the score of the middle of its bin.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from scipy.special import expit, logit

from fco_cli.federation.coordinator.elsewhere import Told
from fco_cli.federation.metrics import BINS, SUMS
from fco_cli.path.performance import EVERYBODY, Line, area_and_error, calibration, calibration_bins
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss


def performance_told(loss: Loss, folds: list[list[Told]], chosen: list[str]) -> tuple[list[Line], list[Line]]:
    """Lines for all rows and for every site, and tenths of predictions, from what was told of every fold."""
    everything = list(chain.from_iterable(folds))
    own = {told.site: [one for one in everything if one.site == told.site] for told in everything if told.site}
    lines, bins = [], []
    for j, name in enumerate(chosen):
        for client, parts in {EVERYBODY: everything, **dict(sorted(own.items()))}.items():
            lines.append({"choice": name, "client": client, **line_told(loss, parts, j)})
        if (rows := _of_histogram(loss, everything, j)) is not None:
            bins += [{"choice": name, **line} for line in calibration_bins(*rows)]
    return lines, bins


def line_told(loss: Loss, parts: list[Told], j: int) -> Line:
    """Of the rows of some parts together, by the j-th model."""
    rows = np.array([part.rows for part in parts])
    count = int(rows.sum())
    line: Line = {"rows": count}
    if loss.together is None:
        mean, squares = (
            float((rows * [getattr(part, name)[j] for part in parts]).sum() / count) for name in ("loss", "squares")
        )
        line |= {"loss": mean, "loss_error": None}
        if count > 1:
            line["loss_error"] = float(np.sqrt(max(squares - mean**2, 0.0) / (count - 1)))
    if (histogram := _of_histogram(loss, parts, j)) is not None:
        return line | _of_scores(*histogram)
    if loss.classification:
        return line | {"accuracy": float(sum(part.hits[j] for part in parts if part.hits is not None) / count)}
    sums = [part.sums[None, j] for part in parts if part.sums is not None]
    if len(sums) < len(parts) or count < 3:
        return line
    return line | {name: float(values[0]) for name, values in SUMS[type(loss)].metrics(np.stack(sums), rows).items()}


def _of_scores(scores: Array, positive: Array) -> Line:
    line: Line = {"observed": float(positive.mean()), "predicted": float(expit(scores).mean())}
    if 0 < positive.sum() < len(positive):
        area, error = area_and_error(scores, positive)
        line |= {"auc": area, "auc_error": error, **calibration(scores, positive)}
    return line


def _of_histogram(loss: Loss, parts: list[Told], j: int) -> tuple[Array, Array] | None:
    """Scores and labels of rows as the parts' histograms have them; none of another loss, or where one is not told."""
    known = SUMS.get(type(loss))
    if known is None or not known.histogram or any(part.sums is None for part in parts):
        return None
    counts = np.sum([part.sums[j] for part in parts if part.sums is not None], axis=0).astype(int)
    middles = logit((np.arange(BINS) + 0.5) / BINS)
    return np.repeat(np.tile(middles, 2), counts), np.repeat([False, True], [counts[:BINS].sum(), counts[BINS:].sum()])
