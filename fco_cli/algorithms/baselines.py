"""Baselines (docs/paper.md, "Algorithms").

Centralized, local and optimum have no messages; FISTA is the accelerated proximal gradient method on the mean gradient
of the clients.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import (
    Aggregates,
    Algorithm,
    Array,
    Cohort,
    Costs,
    Federated,
    Proxes,
    State,
    Style,
    Vector,
    kernel,
)
from fco_cli.algorithms.rounds import Memory, Round
from fco_cli.errors import NoCertificate, UserError, require
from fco_cli.problem.certificate import is_certified
from fco_cli.problem.descent import Batches
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer

log = logging.getLogger(__name__)

prange = range  # Numba's parallel range in the compiled kernel
FULL_BATCH = frozenset(("client_lr", "rounds", "eval_every", "weighting", "dtype"))


@kernel
def proximal_steps(w, rate, batches, geometry):
    """w <- to_primal(to_dual(w) - eta g, eta), once per batch."""
    z = ops.buffer_like(w)
    for k in range(batches.steps):
        ops.to_dual(z, w, geometry)
        ops.gradient_step(z, w, batches, k, rate)
        ops.to_primal(w, z, rate, geometry)


@dataclass(kw_only=True)
class Baseline(Algorithm):
    """Base class of algorithms without messages."""

    def initial_state(self, w: Array) -> State:
        return {"w": w}

    def round(self, state: State, cohort: Cohort | None = None, memory: Memory | None = None) -> Round:
        return Round({"w": self.step(state["w"], cohort)}, np.zeros(len(self.varying), dtype=int))

    @abstractmethod
    def step(self, w: Array, cohort: Cohort | None) -> Array:
        """Return the models after one more round."""

    def output(self, state: State) -> Array:
        return state["w"]


@dataclass(kw_only=True)
class Centralized(Baseline):
    """Proximal gradient method (mirror descent) on the pooled data; a round is one epoch."""

    name: str = "centralized"
    style = Style("centralized", "#000000", "*")
    batch_size: int = 0  # 0: one full-gradient step per epoch; the authors' code uses 32
    uses = FULL_BATCH

    def __post_init__(self) -> None:
        require(self.batch_size >= 0, "algo.batch_size", self.batch_size, "a whole number >= 1, or 0 for all rows")

    @property
    def pooled_batch(self) -> int:
        return self.batch_size

    def check(self) -> None:
        weighted_by_rows = np.allclose(self.problem.weights, self.problem.data.weights("examples"))
        allowed = "examples: algo.batch_size draws uniformly from the pooled rows, and clients differ in size"
        require(not self.batch_size or weighted_by_rows, "hparams.weighting", self.problem.weighting, allowed)

    def step(self, w: Array, cohort: Cohort | None) -> Array:
        rate, data = self.varying.client_lr, self.problem.data
        if not self.batch_size:
            dual = self._to_dual(w)
            dual -= (rate[:, None] * self.problem.risk(w).gradient).astype(w.dtype)
            return self._to_primal(dual, rate)
        assert cohort is not None
        w, widths = w.copy(), self.problem.model.widths
        batches = Batches(data.x, data.targets, cohort.order, cohort.edges, widths, len(cohort.edges) - 1)
        self.bind_kernel(proximal_steps)(w, rate, batches, self.geometry)
        return w

    def costs(self, cohort: Cohort | None) -> Costs:
        rows = len(self.problem.data.y)
        return Costs(prox_calls=-(-rows // (self.batch_size or rows)), gradients=rows)


@kernel
def local_round(models, rate, x, y, order, offsets, widths, geometry):
    """Take one full-batch proximal step on every client's model, in place: models [J, M, P]."""
    jobs, clients, size = models.shape
    for m in prange(clients):
        w = np.empty((jobs, size), models.dtype)
        for j in range(jobs):
            for i in range(size):
                w[j, i] = models[j, m, i]
        proximal_steps(w, rate, Batches(x, y, order, offsets[m : m + 2], widths, 1), geometry)
        for j in range(jobs):
            for i in range(size):
                models[j, m, i] = w[j, i]


@dataclass(kw_only=True)
class Local(Baseline):
    """Proximal gradient method on each client's data separately; one model per client, no communication.

    The state is [J, M, P]; the record contains the median and quartiles over the M models.
    """

    name: str = "local"
    style = Style("local", "#7F7F7F", "X", (2, 2))
    personal = "w"
    uses = FULL_BATCH

    def initial_state(self, w: Array) -> State:
        return {"w": np.repeat(w[:, None], self.problem.data.clients, axis=1)}

    def step(self, w: Array, cohort: Cohort | None) -> Array:
        data, models = self.problem.data, w.copy()
        rows, widths = np.arange(len(data.y)), self.problem.model.widths
        self.bind_kernel(local_round, parallel=True)(
            models, self.varying.client_lr, data.x, data.targets, rows, data.offsets, widths, self.geometry
        )
        return models

    def costs(self, cohort: Cohort | None) -> Costs:
        return Costs(prox_calls=self.problem.data.clients, gradients=len(self.problem.data.y))

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        return super().peak_vectors(sampled, clients, size) * clients


@dataclass(kw_only=True)
class Optimum(Baseline):
    """Certified solution of the pooled problem, computed in one round.

    FISTA (Beck and Teboulle, 2009) with backtracking and the gradient restart of O'Donoghue and Candes. The certificate
    bounds the KKT residual, relative to the gradient at w_0, and the relative duality gap (problem/certificate.py).
    Raises NoCertificate if it is not reached. For a squared loss with many weights and a sparse psi, FISTA starts at
    the model of block coordinate descent on a working set (problem/block_descent.py), which is usually certified.
    """

    name: str = "optimum"
    style = Style("optimum", "#000000", "", (4, 2))
    tolerance: float = 1e-10  # of the relative KKT residual; the gap has ten times this tolerance
    max_iterations: int = 100_000  # iterations after which the solution is not certified
    one_shot = True
    certifies = True
    uses = frozenset(("weighting", "dtype"))

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "algo.tolerance", self.tolerance, "a number > 0")
        require(self.max_iterations >= 1, "algo.max_iterations", self.max_iterations, "a whole number >= 1")

    def check(self) -> None:
        if not self.problem.regularizer.convex or not self.problem.model.convex:
            raise UserError(
                "algo: optimum needs a convex problem; this combination of task and regularizer is not convex"
            )

    def initial_state(self, w: Array) -> State:
        return {"w": w.astype(float)}

    def step(self, w: Array, cohort: Cohort | None) -> Array:
        return np.concatenate([self._solve(j, w[j : j + 1], self.varying.psi[j : j + 1]) for j in range(len(w))])

    def _solve(self, j: int, w: Array, psi: Array) -> Array:
        from fco_cli.problem.block_descent import (
            can_descend,
            descend,
        )  # imports scipy.sparse, which most runs do not need

        problem = self.problem
        # In single precision the gradient has about seven digits.
        tolerance = max(float(np.asarray(self.tolerance)[j]), 1e-5 if problem.dtype == np.float32 else 0.0)
        start = problem.risk(w).gradient
        threshold, passed = tolerance * max(1.0, float(np.linalg.norm(start))), 0
        if can_descend(problem):
            model, residual = descend(problem, psi, w[0], start[0], threshold)
            w = model[None]
            if residual <= threshold and is_certified(problem, psi, w[0], tolerance) is not False:
                log.info("optimum certified: KKT residual %.2e by block coordinate descent", residual)
                return w
        query, previous, momentum = w, w, 1.0
        smoothness = min(1.0, _curvature_along(problem, w, start))
        for iteration in range(self.max_iterations):
            at = problem.risk(query)
            w = problem.prox(query - at.gradient / smoothness, np.ones(1) / smoothness, psi)
            new = problem.risk(w)
            residual = float(problem.kkt_residual(w, new.gradient, psi)[0])
            passed += residual <= threshold
            # The gap is more expensive than an iteration. Compute it the first, second, fourth, ... time only.
            is_due = residual <= threshold and passed & (passed - 1) == 0
            if is_due and is_certified(problem, psi, w[0], tolerance) is not False:
                log.info("optimum certified: KKT residual %.2e after %d iterations", residual, iteration + 1)
                return w
            # Backtracking: check that the estimate of L suffices for this step. Near the optimum the differences of F
            # are below rounding error; the test on gradients, stricter by convexity, is still accurate there.
            step = w - query
            quadratic = smoothness / 2 * (step**2).sum()
            by_value = new.value <= at.value + (at.gradient * step).sum() + quadratic
            by_gradient = ((new.gradient - at.gradient) * step).sum() <= quadratic
            if not (by_value or by_gradient):
                smoothness *= 2
                continue
            if ((query - w) * (w - previous)).sum() > 0:
                momentum = 1.0  # restart: the momentum points uphill
            new_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            query = w + (momentum - 1) / new_momentum * (w - previous)
            previous, momentum = w, new_momentum
        after = f"after {self.max_iterations} iterations"
        reached = f"KKT residual {residual:.2e} {after}, required {threshold:.2e}"
        if residual <= threshold:
            reached = f"relative gap too large {after}; standardize features of different scales"
        raise NoCertificate(
            f"algo: optimum did not reach its certificate: {reached} (raise algo.max_iterations or algo.tolerance)"
        )


def _curvature_along(problem: Problem, w: Array, direction: Array) -> float:
    """Return |H d| / |d| <= L for a direction d [1, P]; 1 if it is not finite and positive."""
    length = np.linalg.norm(direction)
    if not 0 < length < np.inf:
        return 1.0
    step = direction / length
    rise = float(np.linalg.norm(problem.risk(w + step).gradient - problem.risk(w).gradient))
    return rise if 0 < rise < np.inf else 1.0


@dataclass(kw_only=True)
class Fista(Federated):
    """FISTA (Beck and Teboulle, 2009) with the gradient restart of O'Donoghue and Candes.

    Clients send grad F_m at the query point; the server takes one step per round. eta_c is a step along grad F, so
    client_lr=auto is 1/L of F, not of a client's loss.
    """

    name: str = "fista"
    style = Style("FISTA", "#AA4499", "o", (5, 1), family="few rounds")
    broadcast = (Vector("query"),)
    sent = (Vector("gradient"),)
    accumulates_messages = False
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fista supports no other mirror map")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_gradient(message.gradient, received.query, batches)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "query": w.copy(), "momentum": np.ones(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        rate, query = self.varying.client_lr, state["query"]
        w = self._to_primal(query - self._column(rate) * aggregates.mean["gradient"], rate)
        step = w - state["w"]
        is_uphill = ((query - w) * step).sum(axis=1) > 0
        momentum = np.where(is_uphill, 1.0, state["momentum"])
        new_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        return {"w": w, "query": w + self._column((momentum - 1) / new_momentum) * step, "momentum": new_momentum}

    def output(self, state: State) -> Array:
        return state["w"]
