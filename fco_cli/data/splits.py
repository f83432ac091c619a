"""Division of rows into simulated clients, and into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.data.format import FederatedData
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import TRAINING, VALIDATION, generator

MIN_CLIENT_ROWS = 2
ATTEMPTS = 1000
MAX_LABEL_CLASSES = 100
HOLDOUT_METHODS = ("auto", "split", "clients", "rows", "none")


@dataclass(frozen=True)
class Partition:
    """Settings of a partition: the keys `task.partition` and `task.partition_...`."""

    method: str
    clients: int
    concentration: float  # of the Dirichlet distribution; small values give skewed clients

    def __post_init__(self) -> None:
        require(self.method in METHODS, "task.partition", self.method, "null, or one of " + ", ".join(METHODS))
        require(self.clients >= 2, "task.partition_clients", self.clients, "a whole number >= 2")
        is_valid = 0 < self.concentration < np.inf
        require(is_valid, "task.partition_concentration", self.concentration, "a number > 0")

    def assign(self, data: FederatedData, x: Array, seed: int) -> FederatedData:
        """Return the data with rows assigned to simulated clients; `x` are the prepared features."""
        if MIN_CLIENT_ROWS * self.clients > len(data.y):
            problem = f"{data.source} has {len(data.y)} rows, and every client needs at least {MIN_CLIENT_ROWS}"
            raise UserError(f"task.partition_clients: got {self.clients}; {problem}")
        owner = METHODS[self.method](self, data.y, x, seed)
        width = len(str(self.clients - 1))
        names = np.array([f"{self.method}-{k:0{width}}" for k in range(self.clients)])
        return replace(data, client=names[owner])

    def by_labels(self, y: Array, x: Array, seed: int) -> Array:
        """Assign the rows of each class by a Dirichlet draw over the clients."""
        classes = len(np.unique(y))
        allowed = f"quantiles: {classes} different labels are not classes"
        require(classes <= MAX_LABEL_CLASSES, "task.partition", "labels", allowed)
        return by_labels(y, self.clients, self.concentration, seed, "task.partition_")

    def by_quantity(self, y: Array, x: Array, seed: int) -> Array:
        """Assign random rows to clients whose sizes follow a Dirichlet draw."""
        random = generator(seed, TRAINING)
        shares = random.dirichlet(np.full(self.clients, self.concentration))
        spare = len(y) - MIN_CLIENT_ROWS * self.clients
        ends = np.round(np.cumsum(shares) * spare).astype(np.int64) + MIN_CLIENT_ROWS * np.arange(1, self.clients + 1)
        return np.searchsorted(ends, random.permutation(len(y)), side="right").clip(max=self.clients - 1)

    def by_features(self, y: Array, x: Array, seed: int) -> Array:
        """Assign the rows to clients by k-means clustering of the features."""
        from sklearn.cluster import KMeans

        with threadpool_limits(1):  # sums depend bitwise on the number of threads
            owner = KMeans(self.clients, n_init=10, random_state=seed % 2**32).fit(x).labels_
        smallest = np.bincount(owner, minlength=self.clients).min()
        if smallest < MIN_CLIENT_ROWS:
            problem = (
                f"a cluster has {smallest} rows, and every client needs at least {MIN_CLIENT_ROWS}; must be smaller"
            )
            raise UserError(f"task.partition_clients: got {self.clients}: {problem}")
        return owner

    def by_quantiles(self, y: Array, x: Array, seed: int) -> Array:
        """Assign the rows to clients by quantiles of the label, for regression."""
        owner = np.empty(len(y), dtype=np.int64)
        owner[np.argsort(y, kind="stable")] = np.arange(len(y)) * self.clients // len(y)
        return owner


def by_labels(y: Array, clients: int, concentration: float, seed: int, keys: str = "task.") -> Array:
    """Return the client of every row, drawn per class from a Dirichlet distribution (Hsu, Qi and Brown, 2019).

    The draw is repeated until every client has at least MIN_CLIENT_ROWS rows.
    """
    for attempt in range(ATTEMPTS):
        random = generator(seed, TRAINING, attempt)
        owner = np.empty(len(y), dtype=np.int64)
        for label in np.unique(y):
            rows = np.flatnonzero(y == label)
            shares = random.dirichlet(np.full(clients, concentration))
            owner[rows] = np.searchsorted(np.cumsum(shares), random.random(len(rows))).clip(0, clients - 1)
        if np.bincount(owner, minlength=clients).min() >= MIN_CLIENT_ROWS:
            return owner
    raise UserError(
        f"{keys}concentration: got {concentration:g}, which leaves some of the {clients} clients with too "
        f"few rows; must be larger, or {keys}clients smaller"
    )


METHODS: dict[str, Callable[[Partition, Array, Array, int], Array]] = {
    "labels": Partition.by_labels,
    "quantity": Partition.by_quantity,
    "features": Partition.by_features,
    "quantiles": Partition.by_quantiles,
}


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
    method: str
    fraction: float
    auto_method: str  # meaning of auto if the split column has no such rows

    def __post_init__(self) -> None:
        require(
            self.method in HOLDOUT_METHODS, f"task.{self.name}", self.method, "one of " + ", ".join(HOLDOUT_METHODS)
        )
        require(0 < self.fraction < 1, f"task.{self.name}_fraction", self.fraction, "above 0, below 1")

    def draw(self, data: FederatedData, free: Array, seed: int, first: int = 0) -> Array:
        """Return the mask of held-out rows, drawn from the free rows or read from the split of the file.

        Every training client keeps at least one row. Each client has its own random stream; `first` is the number of
        the first client of `data`.
        """
        given = np.zeros(len(data.y), dtype=bool) if data.split is None else data.split == self.part
        method = self.method if self.method != "auto" else "split" if given.any() else self.auto_method
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
                patients = None if data.patient is None else data.patient[client_rows]
                held_out[_draw_rows(random, client_rows, patients, count)] = True
        return held_out


def _draw_rows(random: np.random.Generator, rows: Array, patients: Array | None, count: int) -> Array:
    """Draw `count` of the rows; with patients, whole patients with at most about `count` rows, but not all of them."""
    if patients is None:
        return random.permutation(rows)[:count]
    _, member, sizes = np.unique(patients, return_inverse=True, return_counts=True)
    order = random.permutation(len(sizes))[:-1]  # one patient is left
    before = np.cumsum(sizes[order]) - sizes[order]
    return rows[np.isin(member, order[before < count])]


def split(data: FederatedData, validation: Holdout, test: Holdout, seed: int, first: int = 0) -> Parts:
    """Return the masks of training, validation and test rows; test rows do not depend on the validation settings."""
    free = np.ones(len(data.y), dtype=bool) if data.split is None else data.split == "train"
    if not free.any():
        raise UserError(f"{data.source}: the split column has no rows with split train")
    tests = test.draw(data, free, seed, first)
    validates = validation.draw(data, free & ~tests, seed, first)
    return Parts(free & ~tests & ~validates, validates, tests)
