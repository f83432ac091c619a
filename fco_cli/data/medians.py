"""Medians of columns that nobody sees as a whole: the server asks how many values lie below some edges, and again.

Every exchange brings the median of each column to a sixteenth of where it was known to be. After eight of them it is
known to (largest - smallest) / 2^32. Clients send counts, which add up to the same whatever the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fco_cli.problem.layout import Array

BINS, EXCHANGES = 16, 8


@dataclass(frozen=True)
class MedianSearch:
    """The server's side: between which values the lower median of every column lies."""

    count: Array  # [d], of all clients
    low: Array  # [d]
    high: Array  # [d]
    done: int = 0  # exchanges

    @property
    def finished(self) -> bool:
        return self.done == EXCHANGES

    @property
    def edges(self) -> Array:
        """What the clients are asked about: [d, BINS], the last one is `high`."""
        share = np.arange(1, BINS + 1) / BINS
        return self.low[:, None] * (1 - share) + self.high[:, None] * share

    def narrowed(self, answers: Iterable[Array]) -> MedianSearch:
        """With the counts [d, BINS] that every client has sent."""
        total = sum(answers, np.zeros((len(self.low), BINS), np.int64))
        edges, columns = self.edges, np.arange(len(self.low))
        first = np.argmax(total >= (self.count[:, None] + 1) // 2, axis=1)  # of a column without values: 0
        low = np.where(first > 0, edges[columns, first - 1], self.low)
        return MedianSearch(self.count, low, edges[columns, first], self.done + 1)


def counts_up_to(x: Array, edges: Array) -> Array:
    """The client's side: how many values of each column of x [N, d] are at most each of its edges [d, BINS]."""
    counts = np.zeros(edges.shape, np.int64)
    if len(x) <= len(edges):  # few rows of many columns
        for row in x:
            counts += row[:, None] <= edges  # NaN is not
        return counts
    for k, own in enumerate(edges):
        values = np.sort(x[~np.isnan(x[:, k]), k])
        counts[k] = np.searchsorted(values, own, side="right")
    return counts
