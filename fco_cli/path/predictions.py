"""Predicted probabilities of a binary outcome as histograms, and what follows from them: ROC curve, calibration by
groups of predictions, and net benefit.

A record stores histograms, not predictions of rows, and sites send the same histograms; all figures use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special
from scipy.special import expit

from fco_cli.federation.metrics import BINS
from fco_cli.problem.layout import Array

ALL_CLIENTS = "all clients"
THRESHOLD_STEP = 4  # bins between thresholds of a decision curve: 4 / 512 = 1 / 128
GROUPS = 10  # of a calibration plot
LEVEL = 0.95


@dataclass(frozen=True)
class Predictions:
    """Numbers of rows without and with the event, by bin of the predicted probability; bins are equally wide."""

    negatives: Array  # [BINS]
    positives: Array  # [BINS]

    @classmethod
    def of_scores(cls, scores: Array, positive: Array) -> Predictions:
        """Return the histograms of log odds [N] and binary labels [N]."""
        bins = np.minimum((expit(scores) * BINS).astype(int), BINS - 1)
        return cls(*(np.bincount(bins[mask], minlength=BINS) for mask in (~positive, positive)))

    @classmethod
    def of_sums(cls, sums: Array) -> Predictions:
        """Return the histograms that sites send: [2 BINS], rows without the event first."""
        counts = np.rint(sums).astype(int)
        return cls(counts[:BINS], counts[BINS:])

    @classmethod
    def of_lines(cls, bins: Array, negatives: Array, positives: Array) -> Predictions:
        """Return the histograms of the non-empty bins of a record; `bins` are their indices."""
        new = cls(np.zeros(BINS, int), np.zeros(BINS, int))
        new.negatives[bins], new.positives[bins] = negatives, positives
        return new

    def __add__(self, other: Predictions) -> Predictions:
        return Predictions(self.negatives + other.negatives, self.positives + other.positives)

    @property
    def rows(self) -> int:
        return int(self.negatives.sum() + self.positives.sum())

    @property
    def events(self) -> int:
        return int(self.positives.sum())

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Non-empty bins: index, center, rows without and with the event."""
        used = np.flatnonzero(self.negatives + self.positives)
        return [
            {
                "bin": int(k),
                "predicted": (k + 0.5) / BINS,
                "negatives": int(self.negatives[k]),
                "positives": int(self.positives[k]),
            }
            for k in used
        ]


class Curve(NamedTuple):
    """ROC curve: shares of rows with a prediction of at least a threshold, which decreases."""

    false_positive: Array
    true_positive: Array

    @property
    def area(self) -> float:
        return float(np.trapezoid(self.true_positive, self.false_positive))


def roc_curve(predictions: Predictions) -> Curve | None:
    """Return the ROC curve with a point for every non-empty bin; None without rows of both classes."""
    a, b = predictions.events, predictions.rows - predictions.events
    if not a or not b:
        return None
    used = np.flatnonzero(predictions.negatives + predictions.positives)[::-1]
    shares = [np.cumsum(counts[used]) / total for counts, total in (
        (predictions.negatives, b), (predictions.positives, a))]  # fmt: skip
    return Curve(*(np.concatenate([[0.0], share]) for share in shares))


def wilson_interval(events: Array, rows: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """Return the ends of Wilson's score interval for shares."""
    z = special.ndtri((1 + level) / 2)
    share = events / rows
    center = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return np.clip(center - half, 0, share), np.clip(center + half, share, 1)


def calibration_lines(rows: Array, events: Array, predicted: Array) -> list[dict[str, Any]]:
    """Return a line per group: rows, events, mean prediction, observed frequency and its 95 % interval."""
    low, high = wilson_interval(events, rows)
    columns = ("rows", "events", "predicted", "observed", "low", "high")
    values = zip(rows, events, predicted, events / rows, low, high, strict=True)
    return [dict(zip(columns, [int(line[0]), int(line[1]), *map(float, line[2:])], strict=True)) for line in values]


def calibration_groups(predictions: Predictions, groups: int = GROUPS) -> list[dict[str, Any]]:
    """Return calibration by groups of neighboring bins with about equally many rows."""
    counts = predictions.negatives + predictions.positives
    total = counts.sum()
    if not total:
        return []
    middle = np.cumsum(counts) - counts / 2
    member = np.minimum((middle * groups / total).astype(int), groups - 1)
    centers = (np.arange(BINS) + 0.5) / BINS
    rows, events, sums = (
        np.bincount(member, weights, groups) for weights in (counts, predictions.positives, counts * centers)
    )
    used = rows > 0
    return calibration_lines(rows[used], events[used], sums[used] / rows[used])


def net_benefit(predictions: Predictions) -> dict[str, Array]:
    """Return thresholds and the net benefit, per row, of treating by the model, all rows, and none (always 0).

    A row is treated if its prediction is at least the threshold t; the net benefit is
    (true positives - t / (1 - t) false positives) / rows (Vickers and Elkin, 2006).
    """
    edges = np.arange(THRESHOLD_STEP, BINS, THRESHOLD_STEP)
    thresholds, odds = edges / BINS, edges / (BINS - edges)
    treated = [np.cumsum(counts[::-1])[::-1][edges] for counts in (predictions.positives, predictions.negatives)]
    rows = max(predictions.rows, 1)
    everyone = (predictions.events - odds * (predictions.rows - predictions.events)) / rows
    return {"threshold": thresholds, "model": (treated[0] - odds * treated[1]) / rows, "treat_all": everyone}


def prediction_lines(by_client: Mapping[str, Predictions], **labels: str) -> Iterable[dict[str, Any]]:
    """Yield the lines of predictions.csv: the non-empty bins of every client."""
    for client, predictions in by_client.items():
        for line in predictions.lines:
            yield {**labels, "client": client, **line}


def by_client(scores: Array, positive: Array, owners: Array, names: list[str]) -> dict[str, Predictions]:
    """Return the histograms of every client from the scores, labels and client indices of all rows."""
    return {
        names[m]: Predictions.of_scores(scores[owners == m], positive[owners == m]) for m in np.unique(owners).tolist()
    }
