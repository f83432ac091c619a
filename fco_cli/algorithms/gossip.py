"""Gossip: methods without a server, in which every client has a model and exchanges vectors with its neighbors.

PG-EXTRA (Shi, Ling, Wu and Yin, 2015, Algorithm 1) and NIDS (Li, Shi and Yan, 2019, Algorithm 1) minimize F + psi
exactly with constant steps. Dual averaging (Duchi, Agarwal and Wainwright, 2012) mixes sums of gradients. In simulation
only, with full gradients and all clients in every round. A record's model is the average of the clients' models; its
metric `consensus_error` is the root mean square of their distances from it.
"""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Algorithm, Array, Cohort, Costs, State, Style, kernel
from fco_cli.algorithms.rounds import Memory, Round
from fco_cli.algorithms.topology import (
    TOPOLOGIES,
    Edge,
    complete,
    grid,
    metropolis,
    random_graph,
    read_edges,
    ring,
    star,
)
from fco_cli.algorithms.transforms import Transform
from fco_cli.errors import require
from fco_cli.problem.descent import Batches
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer

log = logging.getLogger(__name__)
prange = range  # Numba's parallel range in the compiled kernel
ROUNDING = 1e-9  # tolerance for eigenvalues


@kernel
def client_gradients(models, factors, x, y, order, offsets, widths, out):
    """Compute out [J, M, P] = factors[m] * grad F_m(models[:, m])."""
    jobs, clients, size = models.shape
    for m in prange(clients):
        w, g, minus = np.empty((jobs, size), models.dtype), np.zeros((jobs, size), models.dtype), np.empty(jobs)
        for j in range(jobs):
            minus[j] = -factors[m]
            for i in range(size):
                w[j, i] = models[j, m, i]
        ops.gradient_step(g, w, Batches(x, y, order, offsets[m : m + 2], widths, 1), 0, minus)
        for j in range(jobs):
            for i in range(size):
                out[j, m, i] = g[j, i]


@kernel
def mix(vectors, matrix, first, neighbors, out):
    """Compute out[:, m] = sum_n matrix[m, n] vectors[:, n] over m and its neighbors [first[m] : first[m + 1]]."""
    jobs, clients, size = vectors.shape
    for m in prange(clients):
        for j in range(jobs):
            for i in range(size):
                out[j, m, i] = matrix[m, m] * vectors[j, m, i]
            for k in range(first[m], first[m + 1]):
                n = neighbors[k]
                for i in range(size):
                    out[j, m, i] += matrix[m, n] * vectors[j, n, i]


@dataclass(kw_only=True)
class Gossip(Algorithm):
    """Base class of gossip methods; a round is one vector in both directions of every edge.

    The loss of client m is scaled by M p_m, since mixing gives all clients the same weight.
    """

    topology: str = "ring"
    edges: str = ""  # topology=file: file with two clients per line, by name or number
    degree: int = 4  # topology=random: mean number of neighbors
    graph_seed: int = 0  # topology=random
    lazy: bool = True  # mix with (I + W) / 2 instead of W
    uses = frozenset(("client_lr", "rounds", "eval_every", "weighting", "dtype"))

    def __post_init__(self) -> None:
        require(self.topology in TOPOLOGIES, "algo.topology", self.topology, f"one of {', '.join(TOPOLOGIES)}")
        is_file = self.topology == "file"
        require(is_file == bool(self.edges), "algo.edges", self.edges, "a file with topology=file, otherwise empty")
        require(self.degree >= 2, "algo.degree", self.degree, "a whole number >= 2")
        require(self.graph_seed >= 0, "algo.graph_seed", self.graph_seed, "a whole number >= 0")

    def contents(self) -> dict[str, str]:
        """Return the digest of the file of edges."""
        if self.topology != "file":
            return {}
        path = Path(self.edges).expanduser()
        return {"edges": hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""}

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = f"euclidean: {self.name} supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)

    def with_transform(self, transform: Transform) -> Self:
        allowed = f"none: {self.name} has no server; its clients exchange vectors with their neighbors"
        require(transform.name == "none", "transform", transform.name, allowed)
        return self

    def check(self) -> None:
        if not self.lazy:
            least = float(np.linalg.eigvalsh(self._mixing)[0])
            allowed = f"true for this graph: its mixing matrix has the eigenvalue {least:.2g}, must be >= 0"
            require(least >= -ROUNDING, "algo.lazy", self.lazy, allowed)

    @cached_property
    def graph(self) -> set[Edge]:
        """Edges between the clients."""
        clients = self.problem.data.clients
        if self.topology == "file":
            return read_edges(self.edges, clients, self.problem.clients)
        if self.topology == "random":
            return random_graph(clients, self.degree, self.graph_seed)
        return {"ring": ring, "star": star, "grid": grid, "complete": complete}[self.topology](clients)

    @cached_property
    def _mixing(self) -> Array:
        """Mixing matrix W or (I + W) / 2 [M, M]."""
        matrix = metropolis(self.graph, self.problem.data.clients)
        return (matrix + np.eye(len(matrix))) / 2 if self.lazy else matrix

    @cached_property
    def _neighbors(self) -> tuple[Array, Array]:
        """Neighbors of all clients one after the other, as `mix` requires."""
        clients = self.problem.data.clients
        pairs = sorted([*self.graph, *((b, a) for a, b in self.graph)])
        first = np.searchsorted([a for a, _ in pairs], np.arange(clients + 1))
        return first.astype(np.int64), np.array([b for _, b in pairs], np.int64)

    def initial_state(self, w: Array) -> State:
        models = np.repeat(w[:, None], self.problem.data.clients, axis=1)
        spectrum = np.sort(np.abs(np.linalg.eigvalsh(self._mixing)))
        gap = 1 - float(spectrum[-2]) if len(spectrum) > 1 else 1.0
        log.info("%s: %d clients, %d edges, spectral gap %.3g", self.name, len(spectrum), len(self.graph), gap)
        return self.start(models)

    @abstractmethod
    def start(self, models: Array) -> State:
        """Return the state for initial models [J, M, P]; its array `x` holds the models."""

    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        return Round(self.step(state), np.zeros(len(self.varying), dtype=int))

    @abstractmethod
    def step(self, state: State) -> State:
        """Return the state after a round."""

    def output(self, state: State) -> Array:
        return self._average(state["x"])

    def state_metrics(self, state: State) -> dict[str, Array]:
        distances = state["x"] - self.output(state)[:, None]
        squares = np.zeros(len(distances))
        for m in range(distances.shape[1]):  # a loop: the order of summation must not depend on the number of jobs
            squares += (distances[:, m].astype(float) ** 2).sum(axis=1)
        return {"consensus_error": np.sqrt(squares / distances.shape[1])}

    def costs(self, cohort: Cohort | None) -> Costs:
        vectors, clients = 2 * len(self.graph), self.problem.data.clients
        sent = vectors * self.problem.layout.size * self.problem.dtype.itemsize
        return Costs(vectors, 0, sent, 0, prox_calls=clients, gradients=len(self.problem.data.y), queries=clients)

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        return super().peak_vectors(sampled, clients, size) * clients

    # Operations on arrays [J, M, P].

    @staticmethod
    def _average(vectors: Array) -> Array:
        total = np.zeros_like(vectors[:, 0])
        for m in range(vectors.shape[1]):
            total += vectors[:, m]
        return total / vectors.dtype.type(vectors.shape[1])

    def _gradients(self, models: Array) -> Array:
        """Return M p_m grad F_m at the model of every client."""
        data, out = self.problem.data, np.empty_like(models)
        factors = self.problem.weights * data.clients
        rows, widths = np.arange(len(data.y)), self.problem.model.widths
        evaluate = self.bind_kernel(client_gradients, parallel=True)
        evaluate(models, factors, data.x, data.targets, rows, data.offsets, widths, out)
        return out

    def _mix(self, vectors: Array) -> Array:
        """Return the weighted sums of every client's vector and those of its neighbors."""
        out = np.empty_like(vectors)
        self.bind_kernel(mix, parallel=True)(vectors, self._mixing, *self._neighbors, out)
        return out

    def _prox(self, vectors: Array, t: Array) -> Array:
        """Return to_primal(z_m, t) for every client."""
        jobs, clients, size = vectors.shape
        psi, times = np.repeat(self.varying.psi, clients).view(np.recarray), np.repeat(t, clients)
        flat, out = np.ascontiguousarray(vectors).reshape(-1, size), np.empty((jobs * clients, size), vectors.dtype)
        self.problem.to_primal(flat, times, self.problem.geometry(psi), out)
        return out.reshape(vectors.shape)

    def _scaled(self, numbers: Array, vectors: Array) -> Array:
        return np.asarray(numbers, vectors.dtype)[:, None, None] * vectors


@dataclass(kw_only=True)
class PgExtra(Gossip):
    """PG-EXTRA. With the mixing matrix W, z <- W x + z - (I + W) / 2 x_last - eta (grad F(x) - grad F(x_last)).

    The first step is z = W x - eta grad F(x), and x = prox_{eta psi}(z) always.
    """

    name: str = "pg_extra"
    style = Style("PG-EXTRA", "#CC3311", "o", family="gossip")

    def start(self, models: Array) -> State:
        zeros = np.zeros_like(models)
        return {"x": models, "z": zeros, "mixed": zeros.copy(), "last": zeros.copy(), "gradient": zeros.copy()}

    def step(self, state: State) -> State:
        """Return the next state, which also holds W x_last and the models and gradients of the last round."""
        x, rate = state["x"], self.varying.client_lr
        gradient, mixed = self._gradients(x), self._mix(x)
        z = mixed + state["z"] - (state["last"] + state["mixed"]) / 2
        z -= self._scaled(rate, gradient - state["gradient"])
        return {"x": self._prox(z, rate), "z": z, "mixed": mixed, "last": x, "gradient": gradient}


@dataclass(kw_only=True)
class Nids(Gossip):
    """NIDS: z <- z - x + W (2 x - x_last - eta (grad F(x) - grad F(x_last))), x = prox_{eta psi}(z).

    The first step mixes as well, z = W (x - eta grad F(x)). Its step size may be up to 2 / L on every graph.
    """

    name: str = "nids"
    style = Style("NIDS", "#CC3311", "s", (5, 1), family="gossip")

    def start(self, models: Array) -> State:
        return {"x": models, "z": models.copy(), "last": models.copy(), "gradient": np.zeros_like(models)}

    def step(self, state: State) -> State:
        x, rate = state["x"], self.varying.client_lr
        gradient = self._gradients(x)
        sent = 2 * x - state["last"] - self._scaled(rate, gradient - state["gradient"])
        z = state["z"] - x + self._mix(sent)
        return {"x": self._prox(z, rate), "z": z, "last": x, "gradient": gradient}


@dataclass(kw_only=True)
class GossipDualAveraging(Gossip):
    """Decentralized dual averaging: s <- W (s - grad F(x)), x = to_primal(to_dual(w_0) + eta_n s, n eta_n).

    eta_n = eta_c n^(-decay) in round n. Not exact: clients disagree in proportion to eta_n.
    """

    name: str = "gossip_dual_averaging"
    style = Style("gossip DA", "#CC3311", "^", (4, 1, 1, 1), family="gossip")
    decay: float = 0.5  # 0: constant steps

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.decay < 1, "algo.decay", self.decay, "at least 0, below 1")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        """Support every mirror map."""

    def start(self, models: Array) -> State:
        dual = self._to_dual(models[:, 0])
        return {"x": models, "s": np.zeros_like(models), "dual": dual, "n": np.zeros(len(models))}

    def step(self, state: State) -> State:
        n = state["n"] + 1
        rate = self.varying.client_lr * n**-self.decay
        s = self._mix(state["s"] - self._gradients(state["x"]))
        x = self._prox(state["dual"][:, None] + self._scaled(rate, s), n * rate)
        return {"x": x, "s": s, "dual": state["dual"], "n": n}
