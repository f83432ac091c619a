"""Which rows train, which validate (they choose), and which test (they are looked at once)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fco_cli.data.format import FederatedData
from fco_cli.errors import UserError, require
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

    def drawn(self, data: FederatedData, free: Array, seed: int, first: int = 0) -> Array:
        """A mask over the rows, of the free ones unless the file says which; whoever trains keeps at least one row.

        `first` is the number of the first client, where they are not all here: each draws from its own stream.
        """
        given = np.zeros(len(data.y), dtype=bool) if data.split is None else data.split == self.part
        way = self.way if self.way != "auto" else "split" if given.any() else self.otherwise
        if way == "split":
            require(
                bool(given.any()), f"task.{self.name}", "split", f"another: {data.source} has no split with {self.part}"
            )
            return given
        held_out = np.zeros(len(free), dtype=bool)
        own = int(self.part == "test")  # test and validation do not draw alike
        _, member = np.unique(data.client, return_inverse=True)
        if way == "clients":
            there = np.unique(member[free])
            count = min(max(1, round(self.fraction * len(there))), len(there) - 1)
            chosen = generator(seed, VALIDATION, own).choice(there, count, replace=False)
            held_out[free] = np.isin(member[free], chosen)
        elif way == "rows":
            rows = np.flatnonzero(free)
            rows = rows[np.argsort(member[rows], kind="stable")]
            clients, starts = np.unique(member[rows], return_index=True)
            for client, places in zip(clients.tolist(), np.split(rows, starts[1:]), strict=True):
                count = min(max(1, round(self.fraction * len(places))), len(places) - 1)
                random = generator(seed, VALIDATION, 2 + 2 * (first + client) + own)
                held_out[random.permutation(places)[:count]] = True
        return held_out


def split(data: FederatedData, validation: Holdout, test: Holdout, seed: int, first: int = 0) -> Parts:
    """The test rows first: they do not depend on how the others validate."""
    free = np.ones(len(data.y), dtype=bool) if data.split is None else data.split == "train"
    if not free.any():
        raise UserError(f"{data.source}: its split leaves no rows to train on")
    tests = test.drawn(data, free, seed, first)
    validates = validation.drawn(data, free & ~tests, seed, first)
    return Parts(free & ~tests & ~validates, validates, tests)
