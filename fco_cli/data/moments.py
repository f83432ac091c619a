"""Federated means and variances: clients send moments of their rows and the server merges them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Moments:
    """Count [d], mean [d] and sum of squared deviations from the mean [d] of the values in each column."""

    count: Array
    mean: Array
    deviations: Array

    @classmethod
    def of(cls, x: Array) -> Moments:
        """Compute the moments of the rows of one client; NaN is a missing value."""
        mean = x.mean(axis=0, dtype=float)
        if not np.isnan(mean).any():
            return cls(np.full(x.shape[1], len(x)), mean, ((x - mean) ** 2).sum(axis=0))
        present = ~np.isnan(x)
        count = present.sum(axis=0)
        mean = np.where(present, x, 0).sum(axis=0, dtype=float) / np.maximum(count, 1)
        return cls(count, mean, (np.where(present, x - mean, 0) ** 2).sum(axis=0))

    @classmethod
    def of_equal(cls, count: Array, value: Array) -> Moments:
        """Return the moments of `count` copies of a value."""
        return cls(count, value, np.zeros(len(value)))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the union, by the stable update of Chan, Golub and LeVeque (1983)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / some)
        extra = difference**2 * (self.count * other.count / some)
        return Moments(count, mean, self.deviations + other.deviations + extra)

    @property
    def scale(self) -> Array:
        """Standard deviations; 1 for a column that is constant up to rounding."""
        deviation = np.sqrt(self.deviations / np.maximum(self.count, 1))
        return np.where(deviation > 1e-12 * np.abs(self.mean), deviation, 1.0)

    @property
    def constant(self) -> Array:
        """Mask of the columns that are constant up to rounding."""
        return ~(np.sqrt(self.deviations / np.maximum(self.count, 1)) > 1e-12 * np.abs(self.mean))


def aggregated_moments(data: ClientData) -> Moments:
    """Merge the moments of all clients."""
    total = Moments.of(data.client(0).x)
    for m in range(1, data.clients):
        total = total.merge(Moments.of(data.client(m).x))
    return total
