"""Standardization as a federation would do it: clients send moments, the server merges them, no row is pooled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Moments:
    """Of some rows: how many, their mean [d] and their summed squared deviations from it [d]."""

    count: int
    mean: Array
    deviations: Array

    @classmethod
    def of(cls, x: Array) -> Moments:
        """What one client computes and sends."""
        mean = x.mean(axis=0, dtype=float)
        return cls(len(x), mean, ((x - mean) ** 2).sum(axis=0))

    @classmethod
    def identity(cls, features: int) -> Moments:
        """Those of features that are standardized already."""
        return cls(1, np.zeros(features), np.ones(features))

    def merge(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque, 1983): stable where sums of squares would cancel."""
        count = self.count + other.count
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        extra = difference**2 * (self.count * other.count / count)
        return Moments(count, mean, self.deviations + other.deviations + extra)

    @property
    def scale(self) -> Array:
        """The standard deviations; 1 for a feature that is constant up to rounding."""
        deviation = np.sqrt(self.deviations / self.count)
        return np.where(deviation > 1e-12 * np.abs(self.mean), deviation, 1.0)


def aggregated_moments(data: ClientData) -> Moments:
    """The server's side: one message per client."""
    total = Moments.of(data.client(0).x)
    for m in range(1, data.clients):
        total = total.merge(Moments.of(data.client(m).x))
    return total
