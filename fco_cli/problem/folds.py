"""Folds of a cross-validation: how rows are dealt to them is a function of the seed alone.

A client deals its own rows, by (seed, its number): no other client's rows matter to it, and nobody else need see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.data import ClientData, Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import FOLDS, generator

WAYS = ("rows", "clients", "each_client")


@dataclass(frozen=True)
class Deal:
    """The rows of every client, or whole clients, in turn to every fold."""

    folds: int  # where each client is held out by itself, as many as there are clients
    by: str  # of WAYS
    classes: bool  # whether the rows of every class are dealt by themselves
    seed: int
    draw: int = 0  # tells draws of one seed apart

    @classmethod
    def of(cls, data: ClientData, folds: int, by: str, classes: bool, seed: int, draw: int = 0) -> Deal:
        """A deal of these rows; refuses more folds than there is something to deal to."""
        rows = int(data.sizes.sum())
        if by == "rows":
            require(folds <= rows, "path.folds", folds, f"at most {rows}, the rows that train")
        else:
            require(data.clients >= 2, "path.by", by, "rows: there is one client only")
            folds = data.clients if by == "each_client" else folds
            require(folds <= data.clients, "path.folds", folds, f"at most {data.clients}, the clients that train")
        made = cls(folds, by, classes, seed, draw)
        if not isinstance(data, Elsewhere):  # of rows that are elsewhere it shows when they are held out
            made.check(np.bincount(made.members(data), minlength=folds))
        return made

    def check(self, rows: Array) -> None:
        """Refuse folds that hold so many rows, if one holds none."""
        require(bool(rows.min() > 0), "path.folds", self.folds, "fewer: one of them would hold no row")

    def members(self, data: ClientData) -> Array:
        """The fold that holds each row out: [N]."""
        if self.by != "rows":
            return self.of_clients(data.clients)[data.owners]
        own = np.split(data.y, data.offsets[1:-1])
        return np.concatenate([self.of_rows(m, y) for m, y in enumerate(own)])

    def of_clients(self, clients: int) -> Array:
        """The folds of whole clients: [M]."""
        if self.by == "each_client":
            return np.arange(clients)
        place = np.empty(clients, dtype=np.int64)
        place[generator(self.seed, FOLDS, self.draw << 24).permutation(clients)] = np.arange(clients)
        return place % self.folds

    def of_rows(self, m: int, y: Array) -> Array:
        """The folds of client m's rows: in turn, from a random one on, rows of a class together and in random order."""
        random = generator(self.seed, FOLDS, (self.draw << 24) + m + 1)
        order = np.lexsort((random.random(len(y)), y if self.classes else np.zeros(len(y))))
        folded = np.empty(len(y), dtype=np.int64)
        folded[order] = (random.integers(self.folds) + np.arange(len(y))) % self.folds
        return folded

    def __iter__(self) -> Iterator[HeldOut]:
        """What the folds hold out, one after another."""
        return (HeldOut(self, number) for number in range(self.folds))


@dataclass(frozen=True)
class Given(Deal):
    """Folds that somebody else has made."""

    folded: Array = field(default_factory=lambda: np.array([], dtype=np.int64))  # [N]

    @classmethod
    def to(cls, folds: int, folded: Array) -> Given:
        made = cls(folds, "rows", classes=False, seed=0, folded=folded)
        made.check(np.bincount(folded, minlength=folds))
        return made

    def members(self, data: ClientData) -> Array:
        return self.folded


@dataclass(frozen=True)
class HeldOut:
    """The rows that one fold of a deal holds out."""

    deal: Deal
    number: int

    def rows(self, data: ClientData) -> Array:
        """A mask [N]."""
        return self.deal.members(data) == self.number

    def rows_of(self, client: int, clients: int, y: Array) -> Array:
        """The mask over one client's rows, which have these labels."""
        if self.deal.by == "rows":
            return self.deal.of_rows(client, y) == self.number
        return np.full(len(y), self.deal.of_clients(clients)[client] == self.number)

    def trains(self, clients: int) -> Array:
        """Which clients have rows that it does not hold out, as far as that is known without them: [M]."""
        return np.ones(clients, bool) if self.deal.by == "rows" else self.deal.of_clients(clients) != self.number
