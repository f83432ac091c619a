"""The clients' data, flat in memory: client m owns the rows offsets[m] to offsets[m+1]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.layout import Array


class SparseRows(NamedTuple):
    """Rows of which only the entries that are not 0 are stored, one row after another."""

    values: Array  # [stored]
    columns: Array  # [stored]
    starts: Array  # [N + 1]; row i has the entries starts[i] to starts[i + 1]
    features: int

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.features

    def take(self, rows: Array) -> SparseRows:
        """The rows of a mask [N]."""
        sizes = np.diff(self.starts)
        kept = np.repeat(rows, sizes)
        starts = np.append(0, np.cumsum(sizes[rows])).astype(np.int64)
        return SparseRows(self.values[kept], self.columns[kept], starts, self.features)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.columns.nbytes + self.starts.nbytes


Rows = Any  # features of some rows: an array [N, d], or SparseRows


@kernel
def dense_part(x, low, high):
    """Some rows in a row, without a copy."""
    return x[low:high]


@kernel
def sparse_part(x, low, high):
    return SparseRows(x.values, x.columns, x.starts[low : high + 1], x.features)


def part_of(x: Rows) -> Kernel:
    """The kernel part(x, low, high) for rows of this kind."""
    return sparse_part if isinstance(x, SparseRows) else dense_part


@dataclass(frozen=True)
class ClientData:
    """Rows of all clients, one client after another; `x` may be a memory map, or hold stored entries only."""

    x: Rows  # [N, d]
    y: Array  # [N]
    offsets: Array  # [M + 1]
    row_weights: Array | None = None  # [N], how much a row counts in its client's loss; none: all alike
    trained_as: Array | None = None  # [M], of rows held out: which training client each client is, or -1

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
        low, high = self.offsets[m : m + 2]
        weights = None if self.row_weights is None else self.row_weights[low:high]
        x = part_of(self.x).as_python(self.x, low, high)
        return ClientData(x, self.y[low:high], np.array([0, high - low], dtype=np.int64), weights)

    @cached_property
    def _weight_of_clients(self) -> Array:
        """The sum of its rows' weights for every client [M]."""
        if self.row_weights is None:
            return self.sizes.astype(float)
        return np.add.reduceat(self.row_weights.astype(float), self.offsets[:-1])

    @cached_property
    def relative_weights(self) -> Array | None:
        """The rows' weights with mean 1 within every client, so that F_m = mean of weight times loss."""
        if self.row_weights is None:
            return None
        return self.row_weights / np.repeat(self._weight_of_clients / self.sizes, self.sizes)

    @cached_property
    def targets(self) -> Array:
        """What the kernels know of a row beside its features: its label [N]; or label and relative weight [N, 2]."""
        if self.relative_weights is None:
            return self.y
        return np.column_stack([self.y, self.relative_weights]).astype(self.y.dtype)

    def shares(self, weighting: str) -> Array:
        """What the clients weigh: all alike (the paper), or by their number of rows, each counted by its weight."""
        return self._weight_of_clients if weighting == "examples" else np.ones(self.clients)

    def take(self, rows: Array) -> ClientData:
        """The rows of a mask [N]; clients that have none of them are left out."""
        sizes = np.add.reduceat(rows, self.offsets[:-1])
        weights = None if self.row_weights is None else self.row_weights[rows]
        offsets = np.append(0, np.cumsum(sizes[sizes > 0])).astype(np.int64)
        x = self.x.take(rows) if isinstance(self.x, SparseRows) else self.x[rows]
        return ClientData(x, self.y[rows], offsets, weights)

    @cached_property
    def owners(self) -> Array:
        """Whose each row is: [N]."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def weights(self, weighting: str) -> Array:
        """p_m in F = sum_m p_m F_m."""
        shares = self.shares(weighting)
        return shares / shares.sum()


class Elsewhere(ClientData, ABC):
    """Clients whose rows are not in this process: x [0, d] and y have none, `offsets` say how many each has.

    What is to be known of the rows is asked of whoever has them, and comes as sums.
    """

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether sums over the rows come without noise."""

    @abstractmethod
    def risk(self, weights: Array) -> Any:
        """F with these weights of the clients, a `Risk`."""

    @abstractmethod
    def smoothness(self, seed: int, batch_size: int) -> float:
        """The largest eigenvalue of a Hessian over batches of every client."""

    @abstractmethod
    def jobs_at_once(self, broadcast: int, sent: int, size: int) -> int:
        """How many jobs a round can have with so many vectors of that size to and from every client; refuses none."""


class Batches(NamedTuple):
    """The batches of one client: batch k is the rows `order[edges[k]:edges[k+1]]` of x and y, read in place."""

    x: Rows
    y: Array  # ClientData.targets
    order: Array
    edges: Array
    widths: Array  # of the model's layers


@kernel
def rows_of(batches, k):
    """The rows of batch k; none after the last."""
    if k >= batches.edges.shape[0] - 1:
        return batches.order[:0]
    return batches.order[batches.edges[k] : batches.edges[k + 1]]


@kernel
def whole(batches):
    """All rows of the client as one batch."""
    rows = batches.y.shape[0]
    order, edges = np.empty(rows, np.int64), np.empty(2, np.int64)
    for i in range(rows):
        order[i] = i
    edges[0], edges[1] = 0, rows
    return Batches(batches.x, batches.y, order, edges, batches.widths)


@kernel
def steps_of(batches):
    """How many there are: K of a client."""
    return batches.edges.shape[0] - 1
