"""Federated medians: the server repeatedly requests the number of values below given bin edges from the clients.

Every exchange narrows the interval of each median to a sixteenth. After eight exchanges its width is
(largest - smallest) / 2^32. Clients send integer counts, so the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fco_cli.problem.layout import Array

BINS, EXCHANGES = 16, 8


@dataclass(frozen=True)
class MedianSearch:
    """Server-side state: an interval that contains the lower median of every column."""

    count: Array  # [d], number of values at all clients
    low: Array  # [d]
    high: Array  # [d]
    done: int = 0  # finished exchanges

    @property
    def finished(self) -> bool:
        return self.done == EXCHANGES

    @property
    def edges(self) -> Array:
        """Upper bin edges [d, BINS]; the last one is `high`."""
        share = np.arange(1, BINS + 1) / BINS
        return self.low[:, None] * (1 - share) + self.high[:, None] * share

    def narrowed(self, answers: Iterable[Array]) -> MedianSearch:
        """Return the search after one more exchange, given the counts [d, BINS] of every client."""
        total = sum(answers, np.zeros((len(self.low), BINS), np.int64))
        edges, columns = self.edges, np.arange(len(self.low))
        first = np.argmax(total >= (self.count[:, None] + 1) // 2, axis=1)  # 0 for a column without values
        low = np.where(first > 0, edges[columns, first - 1], self.low)
        return MedianSearch(self.count, low, edges[columns, first], self.done + 1)


def count_up_to_edges(x: Array, edges: Array) -> Array:
    """Count, on a client, the values of each column of x [N, d] that do not exceed its edges [d, BINS]."""
    counts = np.zeros(edges.shape, np.int64)
    if len(x) <= len(edges):  # few rows of many columns
        for row in x:
            counts += row[:, None] <= edges  # False for NaN
        return counts
    for k, column_edges in enumerate(edges):
        values = np.sort(x[~np.isnan(x[:, k]), k])
        counts[k] = np.searchsorted(values, column_edges, side="right")
    return counts
