"""Stability selection: features that are selected on most random halves of the rows or clients.

Halves are complementary pairs (Shah and Samworth, 2013): every draw divides the rows, or the clients,
into two halves, and both are used. A half selects a feature if its weight is non-zero anywhere on the path down to a
strength. Let q be the mean number of selected features and p the number of all features. Among the features with a
frequency of at least pi > 1/2, the expected number of those that a half selects with probability below q/p is at most
q^2 / ((2 pi - 1) p). These are the false selections if false features are exchangeable and selected no more often than
by chance (Meinshausen and Buhlmann, 2010). The method gives no p-values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.problem.data import ClientData, FoldAssignment, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import TaskData


def complementary_halves(data: ClientData, pairs: int, by: str, classes: bool, seed: int) -> Iterator[HeldOut]:
    """Yield the held-out rows of `pairs` random halves and of their complements."""
    for draw in range(pairs):
        yield from FoldAssignment.of(data, 2, "rows" if by == "rows" else "clients", classes, seed, draw + 1)


def selected_features(data: TaskData, models: Array, features: Sequence[str] | None) -> Array:
    """Return a mask [J, p] of the features with a non-zero weight, in the order of `features`.

    A half may lack some of the features; they count as not selected.
    """
    layout = data.model.layout
    weights = np.concatenate(
        [models[:, layout.slices[block.name]] for block in layout.blocks if block.regularized], axis=1
    )
    mask = (weights != 0).reshape(len(models), -1, data.training.x.shape[1]).any(axis=1)  # over all outputs
    if features is None or data.features is None:
        return mask
    columns = {name: column for column, name in enumerate(data.features)}
    indices = np.array([columns.get(name, -1) for name in features])
    return np.where(indices >= 0, mask[:, indices], False)


@dataclass(frozen=True)
class Stability:
    """Selection frequencies along the path, and the last value at which the error bound holds."""

    frequency: Array  # [J, p]
    bound: Array  # [J], on the expected number of false selections
    threshold: float
    index: int  # of the last value whose bound is small enough

    @classmethod
    def of(cls, selected: Array, threshold: float, errors: float) -> Stability:
        """Return the stability of the features selected on every half, [2B, J, p], simplest model first."""
        so_far = np.maximum.accumulate(selected, axis=1)
        frequency, count = so_far.mean(axis=0), so_far.sum(axis=2).mean(axis=0)
        bound = count**2 / ((2 * threshold - 1) * selected.shape[2])
        return cls(frequency, bound, threshold, int(np.flatnonzero(bound <= errors)[-1]) if bound[0] <= errors else 0)

    @property
    def stable(self) -> Array:
        """Indices of the features whose frequency reaches the threshold."""
        return np.flatnonzero(self.frequency[self.index] >= self.threshold)

    def as_json(self) -> dict[str, Any]:
        return {
            "place": self.index,
            "threshold": self.threshold,
            "bound": float(self.bound[self.index]),
            "stable": self.stable.tolist(),
            "frequency": self.frequency[self.index].tolist(),
        }
