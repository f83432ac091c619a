"""Proximal Newton method on sums of losses, gradients and Hessians (Lee, Sun and Saunders, 2014)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Self

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import (
    Aggregates,
    Array,
    Federated,
    Proxes,
    Scalar,
    State,
    Style,
    Symmetric,
    Vector,
    kernel,
)
from fco_cli.algorithms.rounds import Varying
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel
from fco_cli.memory_limit import in_units, require_memory
from fco_cli.problem.certificate import separates_classes
from fco_cli.problem.curvature import has_curvature, packed_size, unpack
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import minimize_quadratic, scalar_forms
from fco_cli.problem.regularizers import Regularizer

log = logging.getLogger(__name__)

FULL_LIMIT = 1000  # weights up to which hessian=auto is full, and columns of a larger Hessian
TRIALS = {1.0: "value", 0.5: "value_2", 0.25: "value_4", 0.0625: "value_16"}  # fractions of a step, and their losses
SUFFICIENT = 1e-4  # smallest accepted decrease, as a fraction of the predicted one
ROUNDING = 64 * np.finfo(float).eps  # of an objective, relative
TRUSTED = 0.5  # the next query point is output if the last decrease was at least this fraction of the predicted one
MAX_TRIALS = 8  # failed steps in a row after which the model is evaluated again
RIDGE = 1e-11  # added to a Hessian, relative to its diagonal; slows the convergence by this factor only
INDEFINITE = 1e-6  # eigenvalues below minus this fraction of the largest diagonal entry are invalid


@dataclass(kw_only=True)
class ProxNewton(Federated):
    """Clients send loss, gradient and Hessian at the query point; the server minimizes the quadratic model plus psi.

    The state is the last accepted model w with its objective, the step to the query point and the decrease that the
    model predicts for it. Clients also send the losses at fractions of the step: if the whole step does not decrease
    the objective, the best fraction is the next query point.
    """

    name: str = "prox_newton"
    style = Style("prox. Newton", "#004488", "D", (3, 1, 1, 1), family="few rounds")
    hessian: str = "auto"  # full or working_set; auto: full for up to 1,000 weights
    working_set: int = FULL_LIMIT  # columns of the Hessian if it is not full
    broadcast = (Vector("query"), Vector("step"), Vector("columns"))
    sent = (
        Vector("gradient"),
        Symmetric("hessian", most=FULL_LIMIT),
        Scalar("value"),
        Scalar("value_2"),
        Scalar("value_4"),
        Scalar("value_16"),
    )
    accumulates_messages = False
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def __post_init__(self) -> None:
        kinds = ("auto", "full", "working_set")
        require(self.hessian in kinds, "algo.hessian", self.hessian, f"one of {', '.join(kinds)}")
        require(self.working_set >= 2, "algo.working_set", self.working_set, "a whole number >= 2")
        if self.hessian != "auto":
            self._declare(is_full=self.hessian == "full")

    def _declare(self, is_full: bool) -> None:
        """Set the arrays that are broadcast and sent, which depend on the kind of Hessian."""
        columns = () if is_full else (Vector("columns"),)
        hessian = Symmetric("hessian", most=None if is_full else self.working_set)
        sent = tuple(hessian if array.name == "hessian" else array for array in type(self).sent)
        self.__dict__ |= {"broadcast": (Vector("query"), Vector("step"), *columns), "sent": sent}

    def bind(self, problem: Problem, varying: Varying) -> Self:
        bound = super().bind(problem, varying)
        bound._declare(bound.is_full)
        return bound

    @property
    def is_full(self) -> bool:
        """True if clients send the Hessian of all weights."""
        size = self.problem.layout.size
        return self.hessian == "full" or size <= (FULL_LIMIT if self.hessian == "auto" else self.working_set)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = f"euclidean: {self.name} supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)
        require(psi.convex, "regularizer", psi.name, f"convex: {self.name} solves convex problems only")

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        name = self.transform.name
        require(name == "none", "transform", name, "none: a transformed matrix is not a Hessian")

    def check(self) -> None:
        problem, size = self.problem, self.problem.layout.size
        allowed = "another: prox_newton needs a linear model and a loss with second derivatives"
        require(has_curvature(problem.model, problem.loss), "algo", self.name, allowed)
        if not self.is_full:
            remedy = f"full, or use algo=fista, for these {size:,} weights"
            require(problem.model.widths[-1] == 1, "algo.hessian", self.hessian, f"{remedy} of several scores")
            is_scalar = scalar_forms(problem, self.varying.psi, np.arange(size)) is not None
            require(is_scalar, "algo.hessian", self.hessian, f"{remedy} and regularizer={problem.regularizer.name}")
        require_memory(f"algo: {self.name}: the Hessians of {size:,} weights", self._hessian_bytes())

    def _hessian_bytes(self) -> int:
        """Return the bytes of the messages of all clients and of the server's matrices, for all jobs."""
        columns = self._columns
        numbers = (self.problem.data.clients + 1) * packed_size(columns) + 3 * columns**2
        return numbers * len(self.varying) * 8

    @property
    def _columns(self) -> int:
        """Number of columns of the Hessian."""
        size = self.problem.layout.size
        return size if self.is_full else Symmetric("", most=self.working_set).columns(size)

    @property
    def steps_kernel(self) -> Kernel:
        return self.local_steps if self.is_full else self.local_steps_of_columns

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_curvature(message.hessian, message.gradient, message.value, received.query, batches)
        ops.assign_loss(message.value_2, received.query, -0.5, received.step, batches)
        ops.assign_loss(message.value_4, received.query, -0.75, received.step, batches)
        ops.assign_loss(message.value_16, received.query, -0.9375, received.step, batches)

    @staticmethod
    @kernel
    def local_steps_of_columns(received, memory, message, rate, options, batches, geometry):
        ops.assign_curvature_of(
            message.hessian, message.gradient, message.value, received.query, received.columns, batches
        )
        ops.assign_loss(message.value_2, received.query, -0.5, received.step, batches)
        ops.assign_loss(message.value_4, received.query, -0.75, received.step, batches)
        ops.assign_loss(message.value_16, received.query, -0.9375, received.step, batches)

    def other_models(self, received: State, steps: int) -> list[Array]:
        """Return the models of the line search."""
        return [received["query"] - fraction * received["step"] for fraction in (0.5, 0.75, 0.9375)]

    def initial_state(self, w: Array) -> State:
        self._log_sizes()
        jobs, zeros = len(w), np.zeros(len(w))
        size, columns = w.shape[1], self._columns
        first = np.arange(size, dtype=w.dtype)
        first[:columns] = np.append(np.arange(columns - 1), size - 1)  # the bias is in every working set
        return {
            "w": w,
            "query": w.copy(),
            "step": np.zeros_like(w),
            "columns": np.tile(first, (jobs, 1)),  # the working set; unused if the Hessian is full
            "objective": zeros,
            "decrease": zeros.copy(),
            "share": zeros.copy(),
            "trials": zeros.copy(),
            "trusted": np.full(jobs, float(self.problem.loss.quadratic and self.is_full)),
        }

    def _log_sizes(self) -> None:
        itemsize, size = self.problem.dtype.itemsize, self.problem.layout.size
        numbers = sum(array.slots(size) * size for array in self.sent if not isinstance(array, Scalar))
        kind = "all" if self.is_full else f"{self._columns:,} of {size:,}"
        log.info(
            "%s: a client sends %s a round and model (the Hessian of %s weights); the matrices take %s of memory",
            self.name, in_units(numbers * itemsize), kind, in_units(self._hessian_bytes()),
        )  # fmt: skip

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        new = {name: values.copy() for name, values in state.items()}
        hessian = next(array for array in self.sent if array.name == "hessian")
        assert isinstance(hessian, Symmetric)
        matrices = unpack(hessian.triangles(aggregates.mean["hessian"]).astype(float))
        values = {t: aggregates.mean[name].astype(float) for t, name in TRIALS.items()}
        for j in range(len(self.varying)):
            own = {t: float(value[j]) for t, value in values.items()}
            self._update(new, j, own, aggregates.mean["gradient"][j].astype(float), matrices[j], aggregates.share[j])
        return new

    def _update(
        self, state: State, j: int, values: dict[float, float], gradient: Array, hessian: Array, share: float
    ) -> None:
        """Update the state of one job: accept the query point and compute a new step, or shorten the step."""
        step, base = state["step"][j].astype(float), state["w"][j].astype(float)
        moves = bool(step.any())
        is_complete = np.isfinite(values[1.0]) and (not moves or share >= state["share"][j] * (1 - 1e-12))
        fractions = self._sufficient(state, j, base, step, values) if is_complete and moves else []
        if not is_complete and not moves:
            state["w"][j] = np.nan  # no client has a finite loss at the model itself
            return
        if moves and 1.0 not in fractions:
            self._shorten(state, j, base, step, fractions[0] if fractions else None)
            return
        query = state["query"][j].astype(float)
        objective = values[1.0] + self._psi(query, j)
        predicted, before = state["decrease"][j], state["objective"][j]
        allowed = before + TRUSTED * predicted + ROUNDING * abs(before)
        is_good = moves and state["trials"][j] == 0 and objective <= allowed
        is_exact = self.problem.loss.quadratic and self.is_full
        state["w"][j], state["objective"][j], state["share"][j], state["trials"][j] = query, objective, share, 0
        if not self._is_valid(hessian):
            state["w"][j] = state["query"][j] = np.nan  # ends this job only
            return
        self._warn_of_separation(objective)
        columns = None if self.is_full else state["columns"][j, : self._columns].astype(int)
        slopes = gradient if columns is None else gradient[columns]
        psi = self.varying.psi[j : j + 1]
        if not self.problem.loss.quadratic:  # weights whose columns depend on each other do not move far
            hessian = hessian + np.diag(RIDGE * hessian.diagonal())
        target = minimize_quadratic(self.problem, psi, hessian[None], slopes[None], query[None], columns)[0]
        if columns is not None:
            state["columns"][j, : self._columns] = self._chosen(psi, gradient, query, target)
        new_step = target - query
        state["decrease"][j] = min(gradient @ new_step + self._psi(target, j) - self._psi(query, j), 0.0)
        state["trusted"][j] = is_exact or (is_good and state["decrease"][j] >= predicted)
        state["step"][j], state["query"][j] = new_step, target

    def _sufficient(self, state: State, j: int, base: Array, step: Array, values: dict[float, float]) -> list[float]:
        """Return the fractions of the step that decrease the objective enough, the best one first.

        The whole step comes first if it is among them: its gradient and Hessian are known.
        """
        before, predicted, objectives = state["objective"][j], state["decrease"][j], {}
        slack = ROUNDING * max(abs(before), 1e-300)
        for t, value in values.items():
            objective = value + self._psi(base + t * step, j)
            if objective <= before + SUFFICIENT * t * predicted + slack:
                objectives[t] = objective
        return [1.0] if 1.0 in objectives else sorted(objectives, key=lambda t: objectives[t])

    def _shorten(self, state: State, j: int, base: Array, step: Array, fraction: float | None) -> None:
        """Set the query point to a fraction of the step; without one, to that of a damped Newton step.

        After several failures, evaluate the model itself again: clients may have left.
        """
        state["trials"][j] += 1
        if fraction is None:
            decrement = np.sqrt(max(-float(state["decrease"][j]), 0.0))
            fraction = min(min(TRIALS) / 2, 1 / (1 + decrement))
        if state["trials"][j] > MAX_TRIALS:
            fraction = 0.0
            state["trials"][j] = 0
        state["step"][j], state["trusted"][j] = fraction * step, 0
        state["query"][j], state["decrease"][j] = base + fraction * step, fraction * state["decrease"][j]

    def _psi(self, w: Array, j: int) -> float:
        return float(self.problem.psi(w[None], self.varying.psi[j : j + 1])[0])

    def _chosen(self, psi: Array, gradient: Array, query: Array, w: Array) -> Array:
        """Return the working set, sorted: weights without psi, then nonzero ones, then those with a violation.

        A quarter of the set is reserved for the largest violations of the optimality conditions at the query point,
        ties by the size of the gradient.
        """
        count = self._columns
        moved = self.problem.prox((query - gradient)[None], np.ones(1), psi)[0]
        violation = np.abs(query - moved) + 1e-9 * np.abs(gradient)
        priority = np.where(w != 0, 1 + violation, violation / (1 + violation.max()))
        priority[~self.problem.layout.regularized] = np.inf
        kept = np.argsort(-priority, kind="stable")[: count - count // 4]
        violation[kept] = np.inf
        return np.sort(np.argsort(-violation, kind="stable")[:count])

    def _is_valid(self, hessian: Array) -> bool:
        """Return False, with a warning, if the Hessian has a clearly negative eigenvalue: a message is invalid."""
        scale = float(np.abs(hessian.diagonal()).max(initial=0.0))
        try:
            np.linalg.cholesky(hessian + INDEFINITE * max(scale, 1e-300) * np.eye(len(hessian)))
        except np.linalg.LinAlgError:
            lowest = float(np.linalg.eigvalsh(hessian)[0])
            log.warning(
                "algo: %s: the sum of the clients' Hessians has the eigenvalue %.3g, must be >= 0: a client's message "
                "is invalid; the run ends. Compare the clients' versions and rows",
                self.name,
                lowest,
            )
            return False
        return True

    def _warn_of_separation(self, objective: float) -> None:
        """Warn once if no finite solution exists."""
        if separates_classes(self.problem, objective) and not self.__dict__.get("_has_warned"):
            self.__dict__["_has_warned"] = True
            log.warning(
                "algo: %s: the model separates the classes, so that there is no finite solution without a penalty; "
                "choose a regularizer",
                self.name,
            )

    def output(self, state: State) -> Array:
        """Return the query point if the quadratic model has been accurate, else the last accepted model."""
        return np.where(state["trusted"][:, None] > 0, state["query"], state["w"])
