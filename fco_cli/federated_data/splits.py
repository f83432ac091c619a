"""Which rows train, which validate (they choose), and which test (they are looked at once)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.federated_data.format import FederatedData
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import VALIDATION, generator

WAYS = ("auto", "split", "clients", "rows", "none")


class Parts(NamedTuple):
    """Masks over the rows; rows of a file's split that nobody asked for are in none."""

    training: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class Holdout:
    """The keys `task.<name>` and `task.<name>_fraction`: how rows are held out."""

    name: str  # holdout or test
    part: str  # what the file's split calls them: val or test
    way: str
    fraction: float
    otherwise: str  # what auto is where the file's split has no such rows

    def __post_init__(self) -> None:
        require(self.way in WAYS, f"task.{self.name}", self.way, "one of " + ", ".join(WAYS))
        require(0 < self.fraction < 1, f"task.{self.name}_fraction", self.fraction, "above 0, below 1")

    def drawn(self, data: FederatedData, free: Array, random: np.random.Generator) -> Array:
        """A mask over the rows, of the free ones unless the file says which; whoever trains keeps at least one row."""
        given = np.zeros(len(data.y), dtype=bool) if data.split is None else data.split == self.part
        way = self.way if self.way != "auto" else "split" if given.any() else self.otherwise
        if way == "split":
            require(
                bool(given.any()), f"task.{self.name}", "split", f"another: {data.source} has no split with {self.part}"
            )
            return given
        held_out = np.zeros(len(free), dtype=bool)
        _, member, sizes = np.unique(data.client[free], return_inverse=True, return_counts=True)
        if way == "clients":
            count = min(max(1, round(self.fraction * len(sizes))), len(sizes) - 1)
            held_out[free] = np.isin(member, random.choice(len(sizes), count, replace=False))
        elif way == "rows":  # the first of every client's rows, in random order
            order = np.lexsort((random.random(len(member)), member))
            place = np.arange(len(member)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            counts = np.minimum(np.maximum(1, np.round(self.fraction * sizes)), sizes - 1)
            held_out[np.flatnonzero(free)[order]] = place < np.repeat(counts, sizes)
        return held_out


def split(data: FederatedData, validation: Holdout, test: Holdout, seed: int) -> Parts:
    """The test rows first: they do not depend on how the others validate."""
    free = np.ones(len(data.y), dtype=bool) if data.split is None else data.split == "train"
    if not free.any():
        raise UserError(f"{data.source}: its split leaves no rows to train on")
    tests = test.drawn(data, free, generator(seed, VALIDATION, 1))
    validates = validation.drawn(data, free & ~tests, generator(seed, VALIDATION))
    return Parts(free & ~tests & ~validates, validates, tests)
