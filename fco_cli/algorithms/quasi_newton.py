"""Proximal quasi-Newton method on the mean gradient of the clients.

The server keeps the last changes s of the model and y of the gradient, and from them the limited-memory BFGS matrix B
(Liu and Nocedal, 1989; with psi as in Lee, Sun and Saunders, 2014). Only gradients travel: no client sends a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.kernels.compiled import declared, specialize
from fco_cli.problem.mirror import Geometry
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer

FIRST_LENGTH, LENGTH_FACTOR = 1e-3, 10.0  # of the steps before the first pair, in turn: curvature is unknown
RESIDUAL_DECREASE = 0.9  # of the KKT residual, in steps that need not decrease the objective
FIRST_DAMPING, MAX_DAMPING = 1e-2, 1e10  # relative to the largest curvature of the pairs
TOLERANCE, ROUNDING, ITERATIONS = 1e-8, 1e-16, 20_000  # of the server's solver: relative to the step, to w; cap
LARGEST = float(np.finfo(float).max)

prange = range  # Numba's parallel range in the compiled kernel
problem: Problem = declared(Problem)


class Metric(NamedTuple):
    """The matrix B = scale I + sum_i b_i b_i' - sum_i a_i a_i' of one job."""

    scale: float
    added: Array  # [pairs, P], the b_i
    removed: Array  # [pairs, P], the a_i

    @classmethod
    def of_pairs(cls, steps: Array, changes: Array) -> Metric:
        """Return the BFGS matrix of pairs (s, y), the newest last, from the multiple |y| / |s| of the identity."""
        scale = float(np.linalg.norm(changes[-1]) / np.linalg.norm(steps[-1]))
        metric = cls(scale, np.empty((0, steps.shape[1])), np.empty((0, steps.shape[1])))
        for s, y in zip(steps, changes, strict=True):
            product = metric.times(s)
            removed = product / np.sqrt((product * s).sum())
            added = y / np.sqrt((y * s).sum())
            metric = cls(scale, np.vstack([metric.added, added]), np.vstack([metric.removed, removed]))
        return metric

    def times(self, d: Array) -> Array:
        """Return B d. Sums run without BLAS, whose bits depend on the number of threads."""
        added = np.einsum("kp,k->p", self.added, np.einsum("kp,p->k", self.added, d))
        return self.scale * d + added - np.einsum("kp,k->p", self.removed, np.einsum("kp,p->k", self.removed, d))

    @property
    def largest_eigenvalue(self) -> float:
        """Largest eigenvalue, from those of a small matrix with the same nonzero eigenvalues as B - scale I."""
        factors = np.vstack([self.added, self.removed])
        signs = np.repeat([1.0, -1.0], [len(self.added), len(self.removed)])
        gram = np.einsum("ip,jp->ij", factors, factors)
        return self.scale + max(np.linalg.eigvals(signs[:, None] * gram).real, default=0.0)


@kernel
def minimize_model(w, gradient, scale, added, removed, counts, rate, geometry, out):
    """Compute out [J, P] = argmin_u g'(u - w) + (u - w)'B(u - w) / 2 + psi(u) by FISTA with restarts, job by job."""
    size = w.shape[1]
    for j in prange(w.shape[0]):
        own = Geometry(geometry.psi[j : j + 1], geometry.h, geometry.table, geometry.per_weight)
        t = rate[j : j + 1]
        u, new, query, moved = np.empty((1, size)), np.empty((1, size)), np.empty((1, size)), np.empty((1, size))
        for i in range(size):
            u[0, i] = query[0, i] = w[j, i]
        momentum = 1.0
        for _ in range(ITERATIONS):
            for i in range(size):
                moved[0, i] = query[0, i] - rate[j] * (gradient[j, i] + scale[j] * (query[0, i] - w[j, i]))
            for k in range(counts[j]):
                along, against = 0.0, 0.0
                for i in range(size):
                    along += added[j, k, i] * (query[0, i] - w[j, i])
                    against += removed[j, k, i] * (query[0, i] - w[j, i])
                for i in range(size):
                    moved[0, i] -= rate[j] * (along * added[j, k, i] - against * removed[j, k, i])
            problem.to_primal(moved, t, own, new)
            change, distance, length, uphill = 0.0, 0.0, 0.0, 0.0
            for i in range(size):
                step = new[0, i] - u[0, i]
                change += step * step
                distance += (new[0, i] - w[j, i]) ** 2
                length += new[0, i] * new[0, i]
                uphill += (query[0, i] - new[0, i]) * step
            if uphill > 0:
                momentum = 1.0
            new_momentum = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
            for i in range(size):
                step = new[0, i] - u[0, i]
                u[0, i] = new[0, i]
                query[0, i] = u[0, i] + (momentum - 1) / new_momentum * step
            momentum = new_momentum
            if not change > max(TOLERANCE**2 * distance, ROUNDING**2 * length):
                break
        for i in range(size):
            out[j, i] = u[0, i]


@dataclass(kw_only=True)
class QuasiNewton(Federated):
    """Clients send grad F_m at the query point u; the server minimizes g'(u - w) + (u - w)'B(u - w) / 2 + psi(u).

    The gradient at u decides whether w moves to u, and is the next one of the model if it does. If not, the pair of
    (w, u) and a multiple of the identity are added to B.
    """

    name: str = "quasi_newton"
    style = Style("quasi-Newton", "#004488", "s", (5, 1), family="few rounds")
    memory: int = 30  # number of stored pairs of changes
    broadcast = (Vector("query"),)
    sent = (Vector("gradient"),)
    accumulates_messages = False
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def __post_init__(self) -> None:
        require(self.memory >= 1, "algo.memory", self.memory, "a whole number >= 1")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = "euclidean: quasi_newton supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)
        require(psi.convex, "regularizer", psi.name, "convex: quasi_newton minimizes convex models")

    def check(self) -> None:
        allowed = "another: quasi_newton needs a convex loss, hence a linear model"
        require(self.problem.model.convex, "algo", self.name, allowed)

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        name = self.transform.name
        require(name == "none", "transform", name, "none: differences of transformed gradients are no curvature")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_gradient(message.gradient, received.query, batches)

    def initial_state(self, w: Array) -> State:
        jobs, size = w.shape
        vectors = {"w": w, "query": w.copy(), "gradient": np.zeros((jobs, size))}
        pairs = {name: np.zeros((jobs, self.memory, size)) for name in ("steps", "changes")}  # the newest last
        numbers = {"count": 0.0, "damping": 0.0, "length": FIRST_LENGTH, "expected": 0.0, "residual": LARGEST}
        return vectors | pairs | {name: np.full(jobs, value) for name, value in numbers.items()}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        new = {name: values.copy() for name, values in state.items()}
        gradient = aggregates.mean["gradient"].astype(float)
        residual = self.problem.kkt_residual(state["query"], gradient, self.varying.psi)
        finite = np.isfinite(gradient).all(axis=1)
        for j in np.flatnonzero(finite):
            self._receive(new, int(j), gradient[j], residual[j])
        metrics = [self._metric(new, j) for j in range(len(gradient))]
        query = self._minimized(new["w"], new["gradient"], metrics)
        new["query"][:] = np.where(finite[:, None], query, np.nan)
        steps = (new["query"] - new["w"]).astype(float)
        new["expected"][:] = [(step * metric.times(step)).sum() for step, metric in zip(steps, metrics, strict=True)]
        return new

    def output(self, state: State) -> Array:
        return state["w"]

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        return super().peak_vectors(sampled, clients, size) + 8 * self.memory  # old and new pairs, factors of B

    def _receive(self, state: State, j: int, gradient: Array, residual: float) -> None:
        """Add the pair of job j, and move w to the query if this step is accepted; in place.

        By convexity the objective changes by at most y's - s'Bs. Steps that reduce the smallest KKT residual so far by
        a factor are accepted as well: an infinite number of them converges, and finitely many do no harm.
        """
        step = (state["query"][j] - state["w"][j]).astype(float)
        change = gradient - state["gradient"][j]
        product = (step * change).sum()
        if product > 1e-12 * np.linalg.norm(step) * np.linalg.norm(change):
            for name, vector in (("steps", step), ("changes", change)):
                state[name][j] = np.vstack([state[name][j, 1:], vector])
            state["count"][j] = min(state["count"][j] + 1, self.memory)
        elif state["count"][j] == 0 and step.any():
            state["length"][j] *= LENGTH_FACTOR
        damping = state["damping"][j]
        if product <= state["expected"][j] or residual <= RESIDUAL_DECREASE * state["residual"][j]:
            state["w"][j], state["gradient"][j] = state["query"][j], gradient
            state["damping"][j] = damping / 4 if damping > FIRST_DAMPING / 10 else 0.0
            state["residual"][j] = min(state["residual"][j], residual)
        else:
            state["damping"][j] = min(max(2 * damping, FIRST_DAMPING), MAX_DAMPING)

    def _metric(self, state: State, j: int) -> Metric:
        """Return B of job j: the matrix of its pairs, and a multiple of the largest curvature of a pair as damping.

        Without pairs, B limits the length of a step.
        """
        if not (count := int(state["count"][j])):
            none = np.empty((0, state["w"].shape[1]))
            length = state["length"][j] * max(1.0, float(np.linalg.norm(state["w"][j])))
            return Metric((float(np.linalg.norm(state["gradient"][j])) or 1.0) / length, none, none)
        steps, changes = state["steps"][j, -count:], state["changes"][j, -count:]
        metric = Metric.of_pairs(steps, changes)
        curvatures = (changes**2).sum(axis=1) / (steps * changes).sum(axis=1)
        return metric._replace(scale=metric.scale + state["damping"][j] * curvatures.max())

    def _minimized(self, w: Array, gradient: Array, metrics: list[Metric]) -> Array:
        """Return the minimizers [J, P] of the models."""
        factors, out = np.zeros((2, len(w), self.memory, w.shape[1])), np.empty(w.shape)
        for j, metric in enumerate(metrics):
            factors[0, j, : len(metric.added)], factors[1, j, : len(metric.removed)] = metric.added, metric.removed
        scale, counts = np.array([metric.scale for metric in metrics]), np.array([len(one.added) for one in metrics])
        rate = 1 / (1.01 * np.array([metric.largest_eigenvalue for metric in metrics]))
        solve = specialize(minimize_model, parallel=True, problem={"to_primal": self.problem.to_primal})
        solve(w, gradient, scale, *factors, counts, rate, self.geometry, out)
        return out
