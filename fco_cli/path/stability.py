"""Stability selection: which features are chosen on most halves of the data, and how many of them may be chance.

Complementary pairs (Shah and Samworth, 2013): every draw divides the rows, or the clients, into two halves, and both
are used. A feature is selected on a half if it has a weight anywhere on the path down to a strength; q is the mean
number of such features, p their number in all. Of the features whose frequency is at least pi > 1/2, at most
q^2 / ((2 pi - 1) p) are expected to be ones that a half selects with a probability below q/p; these are the false
ones if false ones are exchangeable and no likelier than by chance (Meinshausen and Buhlmann, 2010). No p-values follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.problem.data import ClientData
from fco_cli.problem.folds import Deal, HeldOut
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import TaskData


def halves_of(data: ClientData, pairs: int, by: str, classes: bool, seed: int) -> Iterator[HeldOut]:
    """What is left out: a random half and its complement, so many times."""
    for draw in range(pairs):
        yield from Deal.of(data, 2, "rows" if by == "rows" else "clients", classes, seed, draw + 1)


def selected(data: TaskData, models: Array, features: Sequence[str] | None) -> Array:
    """Which features have a weight: [J, p], in the order of `features`, some of which this half may not have."""
    layout = data.model.layout
    weights = np.concatenate(
        [models[:, layout.slices[block.name]] for block in layout.blocks if block.regularized], axis=1
    )
    found = (weights != 0).reshape(len(models), -1, data.training.x.shape[1]).any(axis=1)  # of any output
    if features is None or data.features is None:
        return found
    mine = {name: place for place, name in enumerate(data.features)}
    known = np.array([mine.get(name, -1) for name in features])
    return np.where(known >= 0, found[:, known], False)


@dataclass(frozen=True)
class Stability:
    """Frequencies down to every value of the path, and the value up to which the bound holds."""

    frequency: Array  # [J, p]
    bound: Array  # [J], on the expected number of errors
    threshold: float
    place: int  # the last value whose bound is small enough

    @classmethod
    def of(cls, found: Array, threshold: float, errors: float) -> Stability:
        """From what was selected on every half, [2B, J, p], the null model's end first."""
        so_far = np.maximum.accumulate(found, axis=1)
        frequency, count = so_far.mean(axis=0), so_far.sum(axis=2).mean(axis=0)
        bound = count**2 / ((2 * threshold - 1) * found.shape[2])
        return cls(frequency, bound, threshold, int(np.flatnonzero(bound <= errors)[-1]) if bound[0] <= errors else 0)

    @property
    def stable(self) -> Array:
        return np.flatnonzero(self.frequency[self.place] >= self.threshold)

    def as_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "threshold": self.threshold,
            "bound": float(self.bound[self.place]),
            "stable": self.stable.tolist(),
            "frequency": self.frequency[self.place].tolist(),
        }
