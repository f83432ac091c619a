"""Losses: what a row's scores cost, given its label.

A loss is one class, and speaks of one row: of its `value`, its `slope` and, for a classification, its `hit`. The loop
over jobs and rows stands in descent.py. A loss also says which labels it takes, how many scores they need, and what
is worth knowing of the scores of data that were held out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.layout import Array
from fco_cli.problem.registry import members


@kernel
def never(scores, y):
    return False


@kernel
def label_itself(y):
    return np.float64(y)


@dataclass(frozen=True)
class Loss:
    """Its kernels see the scores [C] of one row and the row's label; a field is a number that they may name."""

    name: ClassVar[str]
    value: ClassVar[Kernel]  # value(scores, y) -> number
    slope: ClassVar[Kernel]  # slope(scores, y): the derivatives take the scores' place
    optimal_score: ClassVar[Kernel | None] = None  # optimal_score(y) -> the score that minimizes the value, infinite
    # where the infimum is at infinity; only a loss of one score has one, and only such a loss allows site_bias
    together: ClassVar[Kernel | None] = None  # in place of slope: the whole loop (descent.each_row), where rows of a
    # client depend on each other; only all of them then make a batch
    hit: ClassVar[Kernel] = never  # hit(scores, y) -> whether the scores are right; only a classification has one
    quadratic: ClassVar[bool] = False  # the loss is (score - y)^2: sufficient statistics can replace passes over data

    @property
    def most_curved(self) -> Loss:
        """A loss that says at scores of 0, where runs start, how large steps along this one's slopes may be."""
        return self

    @property
    def classification(self) -> bool:
        return self.hit is not never

    def bound(self, name: str) -> Kernel:
        """One of the kernels, with the loss's own numbers in it."""
        numbers: dict[str, Any] = {key: float(number) for key, number in asdict(self).items()}
        return specialize(getattr(self, name), **numbers)

    # Which labels y [N] there may be; `classes` is how many classes have names, where they have.

    def allowed(self, classes: int | None = None) -> str:
        """In words."""
        return "finite numbers"

    def takes(self, y: Array, classes: int | None = None) -> Array:
        """Label by label."""
        return np.isfinite(y)

    def outputs(self, y: Array, classes: int | None = None) -> int:
        """How many scores a row needs."""
        return 1

    def metrics(self, scores: Array, y: Array, offsets: Array) -> dict[str, float]:
        """What else to know of data that were held out, from one score per row: scores [N], y [N], both float64.

        `offsets` say which rows are whose, as in ClientData.
        """
        return {}


def all_losses() -> dict[str, type[Loss]]:
    """Return every loss that has a name, by name."""
    return members(Loss, __package__)
