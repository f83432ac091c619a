"""Rows that are nobody's, dealt to clients: simulated federations of any table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.data.format import FederatedData
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import TRAINING, generator

SMALLEST_CLIENT = 2
ATTEMPTS = 1000
MOST_CLASSES = 100


@dataclass(frozen=True)
class Partition:
    """The keys `task.partition` and `task.partition_...`."""

    way: str
    clients: int
    concentration: float  # of the Dirichlet distribution: small is skewed, large is alike

    def __post_init__(self) -> None:
        require(self.way in WAYS, "task.partition", self.way, "null, or one of " + ", ".join(WAYS))
        require(self.clients >= 2, "task.partition_clients", self.clients, "a whole number >= 2")
        sound = 0 < self.concentration < np.inf
        require(sound, "task.partition_concentration", self.concentration, "a number > 0")

    def deal(self, data: FederatedData, x: Array, seed: int) -> FederatedData:
        """The same rows with other owners; `x` are the features as a model would see them."""
        if SMALLEST_CLIENT * self.clients > len(data.y):
            problem = f"{data.source} has {len(data.y)} rows, and every client needs {SMALLEST_CLIENT}"
            raise UserError(f"task.partition_clients: got {self.clients}; {problem}")
        owner = WAYS[self.way](self, data.y, x, seed)
        width = len(str(self.clients - 1))
        names = np.array([f"{self.way}-{k:0{width}}" for k in range(self.clients)])
        return replace(data, client=names[owner])

    def by_labels(self, y: Array, x: Array, seed: int) -> Array:
        classes = len(np.unique(y))
        many = f"quantiles: {classes} different labels are no classes"
        require(classes <= MOST_CLASSES, "task.partition", "labels", many)
        return by_labels(y, self.clients, self.concentration, seed, "task.partition_")

    def by_quantity(self, y: Array, x: Array, seed: int) -> Array:
        """Alike but for their sizes, which a Dirichlet draw says."""
        random = generator(seed, TRAINING)
        shares = random.dirichlet(np.full(self.clients, self.concentration))
        spare = len(y) - SMALLEST_CLIENT * self.clients
        ends = np.round(np.cumsum(shares) * spare).astype(np.int64) + SMALLEST_CLIENT * np.arange(1, self.clients + 1)
        return np.searchsorted(ends, random.permutation(len(y)), side="right").clip(max=self.clients - 1)

    def by_features(self, y: Array, x: Array, seed: int) -> Array:
        """Clusters of rows that are alike (k-means)."""
        from sklearn.cluster import KMeans

        with threadpool_limits(1):  # the bits of a sum depend on how many make it
            owner = KMeans(self.clients, n_init=10, random_state=seed % 2**32).fit(x).labels_
        smallest = np.bincount(owner, minlength=self.clients).min()
        if smallest < SMALLEST_CLIENT:
            problem = f"a cluster has {smallest} rows, and every client needs {SMALLEST_CLIENT}; must be smaller"
            raise UserError(f"task.partition_clients: got {self.clients}: {problem}")
        return owner

    def by_quantiles(self, y: Array, x: Array, seed: int) -> Array:
        """The smallest labels to the first, the largest to the last: for regressions."""
        owner = np.empty(len(y), dtype=np.int64)
        owner[np.argsort(y, kind="stable")] = np.arange(len(y)) * self.clients // len(y)
        return owner


def by_labels(y: Array, clients: int, concentration: float, seed: int, keys: str = "task.") -> Array:
    """Every class by its own Dirichlet draw over the clients (Hsu, Qi and Brown, 2019): the owner of every row.

    Drawn again until every client has something to learn from.
    """
    for attempt in range(ATTEMPTS):
        random = generator(seed, TRAINING, attempt)
        owner = np.empty(len(y), dtype=np.int64)
        for label in np.unique(y):
            mine = np.flatnonzero(y == label)
            shares = random.dirichlet(np.full(clients, concentration))
            owner[mine] = np.searchsorted(np.cumsum(shares), random.random(len(mine))).clip(0, clients - 1)
        if np.bincount(owner, minlength=clients).min() >= SMALLEST_CLIENT:
            return owner
    raise UserError(
        f"{keys}concentration: got {concentration:g}, which leaves some of {clients} clients without "
        f"rows; must be larger, or {keys}clients smaller"
    )


WAYS: dict[str, Callable[[Partition, Array, Array, int], Array]] = {
    "labels": Partition.by_labels,
    "quantity": Partition.by_quantity,
    "features": Partition.by_features,
    "quantiles": Partition.by_quantiles,
}
