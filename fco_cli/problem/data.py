"""Data of all clients in contiguous arrays, and their division into cross-validation folds.

Client m has the rows offsets[m] to offsets[m+1]. Folds are a deterministic function of the seed: each client assigns
its own rows from (seed, client index), independently of the rows of other clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import FOLDS, generator

FOLD_UNITS = ("rows", "clients", "each_client")


class SparseRows(NamedTuple):
    """Sparse rows in CSR format."""

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
        """Return the rows selected by a mask [N]."""
        sizes = np.diff(self.starts)
        kept = np.repeat(rows, sizes)
        starts = np.append(0, np.cumsum(sizes[rows])).astype(np.int64)
        return SparseRows(self.values[kept], self.columns[kept], starts, self.features)

    def slice(self, low: int, high: int) -> SparseRows:
        """Return the rows low to high without a copy of their entries."""
        return SparseRows(self.values, self.columns, self.starts[low : high + 1], self.features)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.columns.nbytes + self.starts.nbytes


Rows = Any  # features: an array [N, d], or SparseRows


@dataclass(frozen=True)
class ClientData:
    """Rows of all clients, one client after another; `x` may be a memory map or sparse."""

    x: Rows  # [N, d]
    y: Array  # [N]
    offsets: Array  # [M + 1]
    row_weights: Array | None = None  # [N], in the client's loss; None: equal weights
    trained_as: Array | None = None  # [M], for held-out rows: the index of the training client, or -1
    groups: Array | None = None  # [N], rows of one group, such as a patient, are in the same fold

    @classmethod
    def of_equal_clients(cls, x: Array, y: Array) -> ClientData:
        """Return the data of clients with equally many rows: x [M, n, d], y [M, n]."""
        clients, rows, features = x.shape
        return cls(x.reshape(-1, features), y.reshape(-1), np.arange(clients + 1, dtype=np.int64) * rows)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Array:
        return np.diff(self.offsets)

    def client(self, m: int) -> ClientData:
        """Return the data of client m."""
        low, high = self.offsets[m : m + 2]
        weights = None if self.row_weights is None else self.row_weights[low:high]
        x = self.x.slice(low, high) if isinstance(self.x, SparseRows) else self.x[low:high]
        return ClientData(x, self.y[low:high], np.array([0, high - low], dtype=np.int64), weights)

    @cached_property
    def _client_weights(self) -> Array:
        """Sums of the row weights of every client: [M]."""
        if self.row_weights is None:
            return self.sizes.astype(float)
        return np.add.reduceat(self.row_weights.astype(float), self.offsets[:-1])

    @cached_property
    def relative_weights(self) -> Array | None:
        """Row weights scaled to mean 1 within every client: F_m is the mean of relative weight times loss."""
        if self.row_weights is None:
            return None
        return self.row_weights / np.repeat(self._client_weights / self.sizes, self.sizes)

    @cached_property
    def targets(self) -> Array:
        """Labels [N], or labels and relative weights [N, 2], as passed to kernels."""
        if self.relative_weights is None:
            return self.y
        return np.column_stack([self.y, self.relative_weights]).astype(self.y.dtype)

    def shares(self, weighting: str) -> Array:
        """Return unnormalized client weights [M]: 1 (uniform, as in the paper), or sums of row weights (examples)."""
        return self._client_weights if weighting == "examples" else np.ones(self.clients)

    def take(self, rows: Array) -> ClientData:
        """Return the rows selected by a mask [N], without the clients that have no such rows."""
        sizes = np.add.reduceat(rows, self.offsets[:-1])
        weights = None if self.row_weights is None else self.row_weights[rows]
        offsets = np.append(0, np.cumsum(sizes[sizes > 0])).astype(np.int64)
        x = self.x.take(rows) if isinstance(self.x, SparseRows) else self.x[rows]
        return ClientData(x, self.y[rows], offsets, weights, groups=None if self.groups is None else self.groups[rows])

    @cached_property
    def owners(self) -> Array:
        """Client index of every row: [N]."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def weights(self, weighting: str) -> Array:
        """Return the client weights p_m in F = sum_m p_m F_m: [M]."""
        shares = self.shares(weighting)
        return shares / shares.sum()


class QuadraticQuestion(NamedTuple):
    """Models of one fit at which remote clients compute F, its gradient and, at the first ones, its Hessian."""

    data: RemoteRows
    weights: Array  # [M], of the clients
    w: Array  # [J, P]
    hessians: int  # number of models with a Hessian
    columns: Array | None = None  # sorted indices of weights, to which the Hessians are restricted
    is_narrow: bool = False  # all other weights are 0, and gradients [J, A] are restricted to the columns as well


class RemoteRows(ClientData, ABC):
    """Data of clients whose rows are at remote sites: x [0, d] and y [0] are empty, `offsets` are known.

    Functions of the rows are computed by the sites and received as sums. `smallest_cell` is the smallest number of
    events in an interval of times in the tables of all clients.
    """

    smallest_cell: int

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """True if sums over the rows are received without noise."""

    @abstractmethod
    def risk(self, weights: Array) -> Any:
        """Return F with these client weights as a `Risk`."""

    @abstractmethod
    def why_no_hessian(self, parameters: int) -> str | None:
        """Return the reason why the clients refuse Hessians of that many parameters; None if they send them."""

    @abstractmethod
    def curvature(self, questions: Sequence[QuadraticQuestion]) -> list[Any]:
        """Return a `Quadratic` for every question; all are requested together."""

    @abstractmethod
    def score_products(self, question: QuadraticQuestion, with_clients: bool) -> tuple[Any, Any]:
        """Return a `Quadratic` and `ScoreProducts` at one model; those over clients only `with_clients`."""

    @property
    @abstractmethod
    def why_no_tables(self) -> str | None:
        """Return the reason for which no client sends tables of its times; None if one does."""

    @abstractmethod
    def survival(self, w: Array, columns: Array, minimum: int) -> Any:
        """Return the `ClientSurvival` at a model w [P], whose weights of `columns` are estimated."""

    @abstractmethod
    def why_no_estimates(self, m: int) -> str | None:
        """Return the reason why client m refuses a fit of its rows alone; None if it accepts."""

    @abstractmethod
    def smoothness(self, seed: int, batch_size: int) -> float:
        """Return the largest eigenvalue of the Hessians of batches of all clients."""

    @abstractmethod
    def max_jobs_per_round(self, broadcast: int, sent: int, size: int) -> int:
        """Return how many jobs fit into one round with these numbers of vectors of length `size` per client.

        Raise UserError if not even one job fits.
        """

    @abstractmethod
    def clients_factory(self, hparams: Any, seed: int) -> Any:
        """Return the factory of the clients of a simulation (`Setup.clients`)."""


@dataclass(frozen=True)
class FoldAssignment:
    """Assignment of the rows of every client, or of whole clients, to folds."""

    folds: int  # for by="each_client", the number of clients
    by: str  # one of FOLD_UNITS
    classes: bool  # True for stratified folds
    seed: int
    draw: int = 0  # index of the draw, for several draws with one seed

    @classmethod
    def of(cls, data: ClientData, folds: int, by: str, classes: bool, seed: int, draw: int = 0) -> FoldAssignment:
        """Return the assignment for these data; raise UserError if there are too many folds."""
        rows = int(data.sizes.sum())
        if by == "rows":
            require(folds <= rows, "path.folds", folds, f"at most {rows}, the number of training rows")
        deal = cls.among(data.clients, folds, by, classes, seed, draw)
        if not isinstance(data, RemoteRows):  # remote rows are checked when they are held out
            deal.check(np.bincount(deal.members(data), minlength=deal.folds))
        return deal

    @classmethod
    def among(cls, clients: int, folds: int, by: str, classes: bool, seed: int, draw: int = 0) -> FoldAssignment:
        """Return the assignment for this number of clients with unknown rows; raise UserError for too many folds."""
        if by != "rows":
            require(clients >= 2, "path.by", by, "rows, because there is only one client")
            folds = clients if by == "each_client" else folds
            require(folds <= clients, "path.folds", folds, f"at most {clients}, the number of training clients")
        return cls(folds, by, classes, seed, draw)

    def check(self, rows: Array) -> None:
        """Raise UserError if a fold is empty, given the number of rows in every fold."""
        require(bool(rows.min() > 0), "path.folds", self.folds, "fewer, because one fold would be empty")

    def members(self, data: ClientData) -> Array:
        """Return the fold that holds out each row: [N]."""
        if self.by != "rows":
            return self.of_clients(data.clients)[data.owners]
        ends = data.offsets[1:-1]
        labels, groups = (
            np.split(data.y, ends),
            [None] * data.clients if data.groups is None else np.split(data.groups, ends),
        )
        return np.concatenate(
            [self.of_rows(m, y, group) for m, (y, group) in enumerate(zip(labels, groups, strict=True))]
        )

    def of_clients(self, clients: int) -> Array:
        """Return the fold of every client: [M]."""
        if self.by == "each_client":
            return np.arange(clients)
        position = np.empty(clients, dtype=np.int64)
        position[generator(self.seed, FOLDS, self.draw << 24).permutation(clients)] = np.arange(clients)
        return position % self.folds

    def of_rows(self, m: int, y: Array, groups: Array | None = None) -> Array:
        """Return the folds of client m's rows: cyclic from a random fold, over rows shuffled within each class.

        With `groups`, the folds of whole groups; the class of a group is that of its first row.
        """
        if groups is not None:
            _, first, member = np.unique(groups, return_index=True, return_inverse=True)
            return self.of_rows(m, y[first])[member]
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

    def rows_of(self, client: int, clients: int, y: Array, groups: Array | None = None) -> Array:
        """Return the mask of one client's held-out rows, given their labels and groups."""
        if self.deal.by == "rows":
            return self.deal.of_rows(client, y, groups) == self.number
        return np.full(len(y), self.deal.of_clients(clients)[client] == self.number)

    def trains(self, clients: int) -> Array:
        """Return a mask [M] of the clients that may have training rows; it does not depend on the rows."""
        return np.ones(clients, bool) if self.deal.by == "rows" else self.deal.of_clients(clients) != self.number
