"""Baselines that do not federate: centralized, local and optimum (SPEC section 2)."""

from __future__ import annotations

import logging
from functools import cached_property

import numpy as np

from fco_cli.algorithms.base import Algorithm, Cohort, Jobs, State, local_steps
from fco_cli.algorithms.fedmid import FedMid
from fco_cli.errors import NoCertificate, UserError
from fco_cli.problem.compiled import Kernel, kernel, specialise
from fco_cli.problem.data import Batches
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import Evaluation

log = logging.getLogger(__name__)

prange = range  # Numba's parallel range in the compiled kernel
FULL_BATCH = frozenset(("client_lr", "rounds", "eval_every", "weighting", "dtype"))


class Centralized(Algorithm):
    """Proximal gradient (mirror descent) on the pooled data: an epoch is a round is one full-batch step."""

    name = "centralized"
    settings = FULL_BATCH

    def start(self, w: Array) -> State:
        return {"s": w}

    def round(self, state: State, cohort: Cohort | None) -> State:
        return {"s": proximal_step(self.problem, state["s"], self.problem.risk(state["s"]), self.jobs)}

    def output(self, state: State) -> Array:
        return state["s"]

    def prox_calls(self, cohort: Cohort | None) -> int:
        return 1


def proximal_step(problem: Problem, w: Array, at: Evaluation, jobs: Jobs) -> Array:
    """to_primal(to_dual(w) - eta grad F(w), eta)."""
    geometry, dual, new = problem.geometry(jobs.parameters), np.empty_like(w), np.empty_like(w)
    problem.to_dual(w, geometry, dual)
    dual -= (jobs.client_lr[:, None] * at.gradient).astype(w.dtype)
    problem.to_primal(dual, jobs.client_lr, geometry, new)
    return new


@kernel
def stay_home(models, rate, x, y, order, start, widths, geometry):
    """Every client takes one step from its own model, models [J, M, P], in place; FedMid's step knows no time t."""
    jobs, clients, size = models.shape
    for m in prange(clients):
        w = np.empty((jobs, size), models.dtype)  # one piece of memory, which the loops inside need to be fast
        for j in range(jobs):
            for k in range(size):
                w[j, k] = models[j, m, k]
        local_steps(w, rate, rate, Batches(x, y, order, start[m : m + 2], widths), geometry)
        for j in range(jobs):
            for k in range(size):
                models[j, m, k] = w[j, k]


class Local(Algorithm):
    """The same on one client's data at a time, for every client: a model per client, no communication.

    A step is FedMid's local step with all rows of the client as its batch. The state is [J, M, P]; the record
    reports the median and quartiles over the M models.
    """

    name = "local"
    settings = FULL_BATCH

    @cached_property
    def _stay_home(self) -> Kernel:
        problem = self.problem
        steps = specialise(
            FedMid.local_steps, descend=problem.descend, to_dual=problem.to_dual, to_primal=problem.to_primal
        )
        return specialise(stay_home, parallel=True, local_steps=steps)

    def start(self, w: Array) -> State:
        return {"s": np.repeat(w[:, None], self.problem.data.clients, axis=1)}

    def round(self, state: State, cohort: Cohort | None) -> State:
        data, models, rate = self.problem.data, state["s"].copy(), self.jobs.client_lr
        rows = np.arange(len(data.y))
        self._stay_home(models, rate, data.x, data.y, rows, data.start, self.problem.model.widths, self.geometry)
        return {"s": models}

    def output(self, state: State) -> Array:
        return state["s"]

    def prox_calls(self, cohort: Cohort | None) -> int:
        return self.problem.data.clients


class Optimum(Algorithm):
    """The solution of the pooled problem, to a certificate: the KKT residual relative to the gradient at w_0.

    FISTA (Beck and Teboulle, 2009) with backtracking and O'Donoghue and Candes' gradient restart. One round does it
    all, and fails loudly where the certificate is not reached.
    """

    name = "optimum"
    one_shot = True
    settings = frozenset(("weighting", "dtype"))

    def __init__(self, problem: Problem, jobs: Jobs, tolerance: float = 1e-10, max_iterations: int = 100_000) -> None:
        super().__init__(problem, jobs)
        if not problem.regularizer.convex or not problem.model.convex:
            raise UserError("algo: optimum needs a convex problem; this task, regularizer pair is not")
        # In single precision the gradient itself is known to about seven digits.
        self.tolerance = max(tolerance, 1e-5) if problem.dtype == np.float32 else tolerance
        self.max_iterations = max_iterations

    def start(self, w: Array) -> State:
        return {"s": w.astype(float)}

    def round(self, state: State, cohort: Cohort | None) -> State:
        solved = [self._solve(w[None], self.jobs.parameters[[j]]) for j, w in enumerate(state["s"])]
        return {"s": np.concatenate(solved)}

    def output(self, state: State) -> Array:
        return state["s"]

    def _solve(self, w: Array, numbers: Numbers) -> Array:
        problem, query, previous, momentum, smoothness = self.problem, w, w, 1.0, 1.0
        scale = max(1.0, float(np.linalg.norm(problem.risk(w).gradient)))
        for iteration in range(self.max_iterations):
            at = problem.risk(query)
            w = problem.prox(query - at.gradient / smoothness, np.ones(1) / smoothness, numbers)
            new = problem.risk(w)
            residual = float(problem.kkt_residual(w, new.gradient, numbers)[0])
            if residual <= self.tolerance * scale:
                log.info("optimum certified: KKT residual %.2e after %d iterations", residual, iteration + 1)
                return w
            # Is the estimate of L large enough for this step? Near the optimum the value of F has too few digits to
            # tell; the gradients, by convexity a stricter test, still have them.
            step = w - query
            quadratic = smoothness / 2 * (step**2).sum()
            by_value = new.value <= at.value + (at.gradient * step).sum() + quadratic
            by_gradient = ((new.gradient - at.gradient) * step).sum() <= quadratic
            if not (by_value or by_gradient):
                smoothness *= 2
                continue
            if ((query - w) * (w - previous)).sum() > 0:
                momentum = 1.0  # restart: the momentum points uphill
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            query = w + (momentum - 1) / following * (w - previous)
            previous, momentum = w, following
        raise NoCertificate(
            f"algo: optimum did not reach its certificate: KKT residual {residual:.2e} after {self.max_iterations} "
            f"iterations, needed {self.tolerance * scale:.2e} (raise algo.max_iterations or algo.tolerance)"
        )
