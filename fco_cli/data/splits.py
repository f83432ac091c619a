"""Split of the rows into training, validation (model selection) and test (final evaluation)."""

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
    """Masks over the rows; rows of an unused split of the file are in none of them."""

    training: Array
    validation: Array
    test: Array


@dataclass(frozen=True)
class Holdout:
    """Settings of held-out rows: the keys `task.<name>` and `task.<name>_fraction`."""

    name: str  # holdout or test
    part: str  # value in the split column: val or test
    way: str
    fraction: float
    auto_method: str  # meaning of auto if the split column has no such rows

    def __post_init__(self) -> None:
        require(self.way in WAYS, f"task.{self.name}", self.way, "one of " + ", ".join(WAYS))
        require(0 < self.fraction < 1, f"task.{self.name}_fraction", self.fraction, "above 0, below 1")

    def draw(self, data: FederatedData, free: Array, seed: int, first: int = 0) -> Array:
        """Return the mask of held-out rows, drawn from the free rows or read from the split of the file.

        Every training client keeps at least one row. Each client has its own random stream; `first` is the number of
        the first client of `data`.
        """
        given = np.zeros(len(data.y), dtype=bool) if data.split is None else data.split == self.part
        method = self.way if self.way != "auto" else "split" if given.any() else self.auto_method
        if method == "split":
            require(
                bool(given.any()),
                f"task.{self.name}",
                "split",
                f"another value: {data.source} has no rows with split {self.part}",
            )
            return given
        held_out = np.zeros(len(free), dtype=bool)
        offset = int(self.part == "test")  # separate streams for test and validation
        _, member = np.unique(data.client, return_inverse=True)
        if method == "clients":
            candidates = np.unique(member[free])
            count = min(max(1, round(self.fraction * len(candidates))), len(candidates) - 1)
            selected = generator(seed, VALIDATION, offset).choice(candidates, count, replace=False)
            held_out[free] = np.isin(member[free], selected)
        elif method == "rows":
            rows = np.flatnonzero(free)
            rows = rows[np.argsort(member[rows], kind="stable")]
            clients, starts = np.unique(member[rows], return_index=True)
            for client, client_rows in zip(clients.tolist(), np.split(rows, starts[1:]), strict=True):
                count = min(max(1, round(self.fraction * len(client_rows))), len(client_rows) - 1)
                random = generator(seed, VALIDATION, 2 + 2 * (first + client) + offset)
                held_out[random.permutation(client_rows)[:count]] = True
        return held_out


def split(data: FederatedData, validation: Holdout, test: Holdout, seed: int, first: int = 0) -> Parts:
    """Return the masks of training, validation and test rows; test rows do not depend on the validation settings."""
    free = np.ones(len(data.y), dtype=bool) if data.split is None else data.split == "train"
    if not free.any():
        raise UserError(f"{data.source}: the split column has no rows with split train")
    tests = test.draw(data, free, seed, first)
    validates = validation.draw(data, free & ~tests, seed, first)
    return Parts(free & ~tests & ~validates, validates, tests)
