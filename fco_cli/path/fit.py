"""One fit of a second-order path: its models for the strengths of a stage, and the steps between rounds.

With a working set, all weights outside it are 0, and most rounds are narrow: clients send the gradients of its weights
only. Complete gradients are requested at the anchors, for the weights that join the set, and at the solutions, so that
no weight outside the set violates the optimality conditions.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from fco_cli.errors import UserError
from fco_cli.path.round import Request
from fco_cli.path.solve import Part, Solutions
from fco_cli.path.working_set import largest_excess, with_largest
from fco_cli.problem.certificate import GAP
from fco_cli.problem.curvature import Quadratic
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.narrow import can_be_narrow
from fco_cli.problem.problem import Problem
from fco_cli.problem.quadratic_solver import minimize_quadratic, minimize_scalar_forms, scalar_forms
from fco_cli.simulation.evaluate import residual_threshold

MAX_ANCHORS, STAGE_ANCHORS = 12, 4  # of a fit in a round; with a working set, whose strengths are similar
FIRST_ROUNDS = 3  # at the anchors only; their quadratics then determine first guesses for all other strengths
SUFFICIENT_DECREASE, SHORTEST_STEP = 1e-4, 2.0**-30
ROUNDING = 64 * np.finfo(float).eps  # of an objective, relative; narrow and complete sums differ by as much
ANCHORS_CHECKED = 2  # rounds of a stage before the complete gradients at the anchors
NEAR = 1e4  # times the threshold; after smaller residuals, the next models are expected to be solutions
FAST = 0.05  # factor on all residuals in a round, with which the last Hessians of a working set are used again


class Fit:
    """Models of one fit for the strengths of a stage, advanced by one round at a time.

    Parameters
    ----------
    problem, numbers
        Problem of the fit and the parameters of psi [J].
    start
        First models [J, P]; [1, P] if all begin at the same one.
    columns
        First working set; None for the whole Hessian.
    """

    STATE = (
        "columns", "hessian_columns", "hessians", "anchors", "w", "trial", "direction", "step", "slope", "gradient",
        "value", "objective", "trial_psi", "residual", "kkt", "rounds", "settled", "converged", "failed", "waiting",
        "received", "is_shared", "needs_hessians",
    )  # fmt: skip

    def __init__(self, problem: Problem, numbers: Numbers, start: Array, columns: Array | None, tolerance: float):
        self.problem, self.numbers, self.columns, self.tolerance = problem, numbers, columns, tolerance
        jobs, size = len(numbers), problem.layout.size
        self.is_shared = len(start) < jobs  # in the first round
        self.w = np.repeat(start, jobs // len(start), axis=0)
        self.trial, self.direction = self.w.copy(), np.zeros((jobs, size))
        self.step, self.slope = np.ones(jobs), np.zeros(jobs)
        self.gradient, self.value = np.zeros((jobs, size)), np.zeros(jobs)
        self.objective = np.full(jobs, np.inf)
        self.residual, self.kkt = np.full(jobs, np.inf), np.full(jobs, np.inf)  # over the working set, over all weights
        self.settled = np.zeros(jobs, bool)  # solved over the working set; the complete gradient is not known
        self.rounds, self.converged, self.failed = np.zeros(jobs, int), np.zeros(jobs, bool), np.zeros(jobs, bool)
        self.anchors, self.hessians = np.empty(0, int), np.empty((0, 0, 0))
        self.hessian_columns = columns
        self.needs_hessians, self.received = True, 0
        self.waiting = np.zeros(jobs, bool)  # for the anchors
        if self.is_shared:
            self.waiting[:] = True
            self.waiting[evenly_spaced(jobs, MAX_ANCHORS if columns is None else STAGE_ANCHORS)] = False
        self.can_be_narrow = columns is not None and can_be_narrow(problem.data, problem.model)
        self.forms, self.part_forms = np.empty((4, jobs, 0)), np.empty((4, jobs, 0))
        if columns is not None:
            forms = scalar_forms(problem, numbers, np.arange(size))
            assert forms is not None
            self.forms = forms
        self.trial_psi = self._psi(np.arange(jobs), self.trial)

    @cached_property
    def threshold(self) -> Array:
        """Largest KKT residuals [J] of solutions."""
        return residual_threshold(self.problem, self.numbers, self.tolerance)

    @property
    def active(self) -> Array:
        """Indices of the jobs that have neither converged nor failed and do not wait for others."""
        return np.flatnonzero(~(self.converged | self.failed | self.waiting))

    @property
    def state(self) -> Part:
        """Everything that changes with the rounds."""
        values = {name: getattr(self, name) for name in self.STATE}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    def restore(self, state: Part) -> None:
        """Replace the state by a stored one."""
        for name, value in state.items():
            setattr(self, name, value if value.ndim else value.item())

    def request(self, anchors: int) -> Request:
        """Return the models of the next round, with at most `anchors` Hessians."""
        jobs = self.active
        self.is_complete = self._needs_complete_gradients(jobs)
        if not self.is_complete:
            jobs = jobs[~self.settled[jobs]]
        sent = jobs[:1] if self.is_shared else jobs
        curved = np.zeros(len(sent), bool)
        if self.needs_hessians:
            curved[evenly_spaced(len(sent), anchors)] = True
        self.jobs, self.sent, self.curved, self.models = jobs, sent, curved, self.trial[sent]
        return Request(self.problem, self.models, curved, self.columns, not self.is_complete)

    def _needs_complete_gradients(self, jobs: Array) -> bool:
        if not self.can_be_narrow or self.received == ANCHORS_CHECKED or not self.forms[0][:, self.columns].any():
            return True
        return bool((self.residual[jobs] <= NEAR * self.threshold[jobs]).all())

    def receive(self, answer: Quadratic, round_number: int) -> None:
        """Accept or shorten the last steps, and compute the next ones."""
        jobs, value, gradient, models = self.jobs, answer.value, answer.gradient, self.models
        if self.is_shared:
            value, gradient = np.repeat(value, len(jobs)), np.repeat(gradient, len(jobs), axis=0)
            models = np.repeat(models, len(jobs), axis=0)
        with np.errstate(all="ignore"):
            objective = value + self.trial_psi[jobs]
            own = gradient if self.columns is None or not self.is_complete else gradient[:, self.columns]
            residual = self._residual(jobs, self._part(self.trial, jobs), own)
            decrease = SUFFICIENT_DECREASE * self.step[jobs] * self.slope[jobs]
            is_lower = objective <= self.objective[jobs] + decrease + ROUNDING * np.abs(objective)
            is_accepted = is_lower | (residual < self.residual[jobs] / 2) | self.settled[jobs]
            is_accepted &= np.isfinite(objective + residual)
        if not is_accepted.any() and np.isinf(self.objective[jobs]).any():
            raise UserError("path: the initial objective or its gradient overflows; rescale the data")
        self.rounds[jobs] = round_number
        accepted = jobs[is_accepted]
        previous = self.residual[accepted]
        self._assign(self.w, accepted, self._part(self.trial, accepted))
        self.value[accepted] = value[is_accepted]
        if self.is_complete:
            self.gradient[accepted] = gradient[is_accepted]
            if self.columns is None:
                self.kkt[accepted] = residual[is_accepted]
            else:
                self.kkt[accepted] = self.problem.kkt_residual(models, gradient, self.numbers[jobs])[is_accepted]
        else:
            self._assign(self.gradient, accepted, gradient[is_accepted])
        self.objective[accepted], self.residual[accepted] = objective[is_accepted], residual[is_accepted]
        usable = np.isfinite(answer.hessian).all(axis=(1, 2)) & is_accepted[: len(self.sent)][self.curved]
        if usable.any():
            self.anchors, self.hessians = self.sent[self.curved][usable], answer.hessian[usable]
            self.hessian_columns = self.columns
        rejected = jobs[~is_accepted]
        self.step[rejected] /= 2
        self.failed[rejected] = self.step[rejected] < SHORTEST_STEP
        self._compute_steps(accepted)
        if len(rejected):
            self.trial[rejected] = self.w[rejected] + self.step[rejected, None] * self.direction[rejected]
            self.trial_psi[rejected] = self._psi(rejected, self.trial[rejected])
        self.is_shared = False
        self.received += 1
        if self.waiting.any() and (self.received >= FIRST_ROUNDS or not len(self.active)):
            self._start_waiting()
        if self.columns is not None:
            before = len(self.columns)
            is_slow = bool((self.residual[accepted] > FAST * previous).any()) or len(accepted) < len(jobs)
            if self.is_complete:
                self._extend_columns()
            self.needs_hessians = len(self.columns) > before or is_slow

    def _start_waiting(self) -> None:
        """Start the waiting jobs at the model of the nearest other job, with its loss and gradient."""
        jobs, others = np.flatnonzero(self.waiting), np.flatnonzero(~self.waiting)
        nearest = others[np.abs(others - jobs[:, None]).argmin(axis=1)]
        self.waiting[:] = False
        for array in (self.value, self.rounds):
            array[jobs] = array[nearest]
        for vectors in (self.w, self.gradient):
            self._assign(vectors, jobs, self._part(vectors, nearest))
        self.objective[jobs] = self.value[jobs] + self._psi(jobs, self.w[jobs])
        self.residual[jobs] = self._residual(jobs, self._part(self.w, jobs), self._part(self.gradient, jobs))
        if self.columns is None:
            self.kkt[jobs] = self.residual[jobs]
        self._compute_steps(jobs)

    def _residual(self, jobs: Array, part: Array, gradient: Array) -> Array:
        """Return the KKT residuals [n] of jobs, over the working set, from its weights and gradients [n, A]."""
        if self.columns is None:
            return self.problem.kkt_residual(part, gradient, self.numbers[jobs])
        a, b = self._part_forms(jobs)[:2]
        moved = part - gradient
        return np.sqrt(((part - (moved - np.clip(moved, -a, a)) / (1 + b)) ** 2).sum(axis=1))

    def _part(self, models: Array, jobs: Array) -> Array:
        """Return models [n, A] of jobs, restricted to the working set."""
        return models[jobs] if self.columns is None else models[jobs[:, None], self.columns]

    def _assign(self, models: Array, jobs: Array, values: Array) -> None:
        """Assign values [n, A] of the working set to the models of jobs."""
        models[jobs if self.columns is None else (jobs[:, None], self.columns)] = values

    def _psi(self, jobs: Array, models: Array) -> Array:
        """Return psi [n] of models [n, P] of jobs, which are 0 outside the working set."""
        if self.columns is None:
            return self.problem.psi(models, self.numbers[jobs])
        return self._scalar_psi(jobs, models[:, self.columns])

    def _part_forms(self, jobs: Array) -> Array:
        """Return the scalar forms [4, n, A] of the working set."""
        assert self.columns is not None
        if self.part_forms.shape[2] != len(self.columns):  # the set only grows
            self.part_forms = np.ascontiguousarray(self.forms[:, :, self.columns])
        return self.part_forms if len(jobs) == self.part_forms.shape[1] else self.part_forms[:, jobs]

    def _scalar_psi(self, jobs: Array, part: Array) -> Array:
        """Return psi [n] of jobs from the weights [n, A] of the working set."""
        a, b = self._part_forms(jobs)[:2]
        return (a * np.abs(part) + b * part * part / 2).sum(axis=1)

    def _compute_steps(self, jobs: Array) -> None:
        """Minimize the quadratic models of jobs at accepted points, and test their convergence."""
        between = self._neighbors(jobs)
        start, gradient = self._part(self.w, jobs), self._part(self.gradient, jobs)
        if self.columns is None:
            numbers = self.numbers[jobs]
            solutions = minimize_quadratic(self.problem, numbers, self.hessians, gradient, start, between=between)
            self.trial_psi[jobs] = self.problem.psi(solutions, numbers)
        else:
            assert self.hessian_columns is not None
            own = np.searchsorted(self.columns, self.hessian_columns)
            forms = self._part_forms(jobs)
            solutions = start.copy()
            solutions[:, own] = minimize_scalar_forms(
                self.hessians, gradient[:, own], start[:, own], forms[:, :, own], between=between
            )
            self.trial_psi[jobs] = self._scalar_psi(jobs, solutions)
        direction = solutions - start
        self._assign(self.trial, jobs, solutions)
        self._assign(self.direction, jobs, direction)
        change = self.trial_psi[jobs] - (self.objective[jobs] - self.value[jobs])
        self.slope[jobs] = np.minimum((gradient * direction).sum(axis=1) + change, 0.0)
        self.step[jobs] = 1.0
        allowed_gap = GAP * self.tolerance * np.abs(self.objective[jobs])
        allowed_gap = np.maximum(allowed_gap, np.finfo(float).eps * np.abs(self.value[jobs]))
        threshold = self.threshold[jobs]
        is_solved = (self.residual[jobs] <= threshold) & (-self.slope[jobs] <= allowed_gap)
        if self.is_complete:
            self.converged[jobs] = is_solved & (self.kkt[jobs] <= threshold)
        self.settled[jobs] = is_solved & ~np.bool_(self.is_complete)
        settled = jobs[self.settled[jobs]]
        if len(settled):  # the complete gradient is requested at the same model
            self._assign(self.trial, settled, self._part(self.w, settled))
            self.trial_psi[settled] = self.objective[settled] - self.value[settled]

    def _neighbors(self, jobs: Array) -> tuple[Array, Array]:
        """Return the indices [2, n] of the anchors on both sides of jobs, and the shares [n] of the second ones."""
        right = np.clip(np.searchsorted(self.anchors, jobs), 0, len(self.anchors) - 1)
        left = np.where(self.anchors[right] > jobs, np.maximum(right - 1, 0), right)
        distance = np.maximum(self.anchors[right] - self.anchors[left], 1)
        return np.stack([left, right]), np.clip((jobs - self.anchors[left]) / distance, 0, 1)

    def _extend_columns(self) -> None:
        """Add the weights that violate the optimality conditions of a job to the working set, the worst first."""
        assert self.columns is not None
        excess = largest_excess(self.gradient, self.w, self.forms[0], self.active)
        self.columns = with_largest(self.columns, excess)
        jobs = self.active
        self.residual[jobs] = self._residual(jobs, self._part(self.w, jobs), self._part(self.gradient, jobs))

    @property
    def solutions(self) -> Solutions:
        scale = self.problem.kkt_scale(self.numbers)
        return Solutions(self.w, self.rounds, self.kkt / scale, self.converged, self.value)


def evenly_spaced(count: int, most: int) -> Array:
    """Return at most `most` indices of 0 to count - 1, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
