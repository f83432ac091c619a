"""The clients' data, flat in memory: client m owns the rows offsets[m] to offsets[m+1]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fco_cli.problem.compiled import kernel
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class ClientData:
    """Rows of all clients, one client after another; `x` may be a memory map."""

    x: Array  # [N, d]
    y: Array  # [N]
    offsets: Array  # [M + 1]
    row_weights: Array | None = None  # [N], how much a row counts, 1 on average over all training rows; None: all alike

    @classmethod
    def of_equal_clients(cls, x: Array, y: Array) -> ClientData:
        """From stacked clients: x [M, n, d], y [M, n]."""
        clients, rows, features = x.shape
        return cls(x.reshape(-1, features), y.reshape(-1), np.arange(clients + 1, dtype=np.int64) * rows)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Array:
        return np.diff(self.offsets)

    def client(self, m: int) -> ClientData:
        """Client m alone."""
        rows = slice(self.offsets[m], self.offsets[m + 1])
        weights = None if self.row_weights is None else self.row_weights[rows]
        return ClientData(self.x[rows], self.y[rows], np.array([0, rows.stop - rows.start], dtype=np.int64), weights)

    def take(self, rows: Array) -> ClientData:
        """The rows of a mask [N]; clients that have none of them are left out."""
        sizes = np.add.reduceat(rows, self.offsets[:-1])
        weights = None if self.row_weights is None else self.row_weights[rows]
        offsets = np.append(0, np.cumsum(sizes[sizes > 0])).astype(np.int64)
        return ClientData(self.x[rows], self.y[rows], offsets, weights)

    @cached_property
    def owners(self) -> Array:
        """Whose each row is: [N]."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def weights(self, weighting: str) -> Array:
        """The clients' weights in F = sum_m p_m F_m: 1/M each (the paper), or by their number of examples."""
        sizes = self.sizes if weighting == "examples" else np.ones(self.clients)
        return sizes / sizes.sum()


class Batches(NamedTuple):
    """The batches of one client: batch k is the rows `order[edges[k]:edges[k+1]]` of x and y, read in place."""

    x: Array
    y: Array
    order: Array
    edges: Array
    widths: Array  # of the model's layers


@kernel
def whole(batches):
    """All rows of the client as one batch."""
    rows = batches.x.shape[0]
    order, edges = np.empty(rows, np.int64), np.empty(2, np.int64)
    for i in range(rows):
        order[i] = i
    edges[0], edges[1] = 0, rows
    return Batches(batches.x, batches.y, order, edges, batches.widths)


@kernel
def steps_of(batches):
    """How many there are: K of a client."""
    return batches.edges.shape[0] - 1
