"""Cross-validation folds as a deterministic function of the seed.

Each client assigns its own rows from (seed, client index), independently of the rows of other clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.data import ClientData, RemoteRows
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import FOLDS, generator

WAYS = ("rows", "clients", "each_client")


@dataclass(frozen=True)
class FoldAssignment:
    """Assignment of the rows of every client, or of whole clients, to folds."""

    folds: int  # for by="each_client", the number of clients
    by: str  # one of WAYS
    classes: bool  # True for stratified folds
    seed: int
    draw: int = 0  # index of the draw, for several draws with one seed

    @classmethod
    def of(cls, data: ClientData, folds: int, by: str, classes: bool, seed: int, draw: int = 0) -> FoldAssignment:
        """Return the assignment for these data; raise UserError if there are too many folds."""
        rows = int(data.sizes.sum())
        if by == "rows":
            require(folds <= rows, "path.folds", folds, f"at most {rows}, the number of training rows")
        else:
            require(data.clients >= 2, "path.by", by, "rows, because there is only one client")
            folds = data.clients if by == "each_client" else folds
            require(
                folds <= data.clients, "path.folds", folds, f"at most {data.clients}, the number of training clients"
            )
        deal = cls(folds, by, classes, seed, draw)
        if not isinstance(data, RemoteRows):  # remote rows are checked when they are held out
            deal.check(np.bincount(deal.members(data), minlength=folds))
        return deal

    def check(self, rows: Array) -> None:
        """Raise UserError if a fold is empty, given the number of rows in every fold."""
        require(bool(rows.min() > 0), "path.folds", self.folds, "fewer, because one fold would be empty")

    def members(self, data: ClientData) -> Array:
        """Return the fold that holds out each row: [N]."""
        if self.by != "rows":
            return self.of_clients(data.clients)[data.owners]
        labels = np.split(data.y, data.offsets[1:-1])
        return np.concatenate([self.of_rows(m, y) for m, y in enumerate(labels)])

    def of_clients(self, clients: int) -> Array:
        """Return the fold of every client: [M]."""
        if self.by == "each_client":
            return np.arange(clients)
        position = np.empty(clients, dtype=np.int64)
        position[generator(self.seed, FOLDS, self.draw << 24).permutation(clients)] = np.arange(clients)
        return position % self.folds

    def of_rows(self, m: int, y: Array) -> Array:
        """Return the folds of client m's rows: cyclic from a random fold, over rows shuffled within each class."""
        random = generator(self.seed, FOLDS, (self.draw << 24) + m + 1)
        order = np.lexsort((random.random(len(y)), y if self.classes else np.zeros(len(y))))
        folded = np.empty(len(y), dtype=np.int64)
        folded[order] = (random.integers(self.folds) + np.arange(len(y))) % self.folds
        return folded

    def __iter__(self) -> Iterator[HeldOut]:
        """Iterate over the folds."""
        return (HeldOut(self, number) for number in range(self.folds))


@dataclass(frozen=True)
class PredefinedFolds(FoldAssignment):
    """Predefined folds."""

    folded: Array = field(default_factory=lambda: np.array([], dtype=np.int64))  # [N]

    @classmethod
    def to(cls, folds: int, folded: Array) -> PredefinedFolds:
        deal = cls(folds, "rows", classes=False, seed=0, folded=folded)
        deal.check(np.bincount(folded, minlength=folds))
        return deal

    def members(self, data: ClientData) -> Array:
        return self.folded


@dataclass(frozen=True)
class HeldOut:
    """One fold: the rows that are held out."""

    deal: FoldAssignment
    number: int

    def rows(self, data: ClientData) -> Array:
        """Return the mask of held-out rows: [N]."""
        return self.deal.members(data) == self.number

    def rows_of(self, client: int, clients: int, y: Array) -> Array:
        """Return the mask of one client's held-out rows, given their labels."""
        if self.deal.by == "rows":
            return self.deal.of_rows(client, y) == self.number
        return np.full(len(y), self.deal.of_clients(clients)[client] == self.number)

    def trains(self, clients: int) -> Array:
        """Return a mask [M] of the clients that may have training rows; it does not depend on the rows."""
        return np.ones(clients, bool) if self.deal.by == "rows" else self.deal.of_clients(clients) != self.number
