"""Minimization of g'd + d'Hd / 2 + psi(w + d) for a psi that is not a sum over weights.

FISTA with restarts is followed by Newton's method on the fixed-point equation w = prox_t(w - t grad), with the
derivative of the prox from finite differences.
"""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel, specialize
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.mirror import to_primal
from fco_cli.problem.problem import Problem

GRADIENT_STEPS, ROUNDS = 200, 100  # FISTA between two Newton steps, and number of both together
LARGEST_NEWTON = 512  # parameters
DIFFERENCE = 1e-6  # finite-difference step of the prox, relative to the largest entry


@kernel
def proximal_step(hessian, linear, start, query, rate, geometry, z, out):
    """Compute out = prox(query - rate grad of the model at query); arrays are [1, P], `z` is overwritten."""
    for i in range(z.shape[1]):
        slope = linear[i]
        for k in range(z.shape[1]):
            slope += hessian[i, k] * (query[0, k] - start[k])
        z[0, i] = query[0, i] - rate[0] * slope
    to_primal(z, rate, geometry, out)


@kernel
def accelerated_steps(hessian, linear, start, geometry, rate, steps, tolerance, w):
    """Move w [1, P] by FISTA with restarts, until a step is small relative to w; return the size of that step."""
    size = w.shape[1]
    query, new, z = np.empty((1, size)), np.empty((1, size)), np.empty((1, size))
    momentum, moved = 1.0, np.inf
    for i in range(size):
        query[0, i] = w[0, i]
    for _ in range(steps):
        proximal_step(hessian, linear, start, query, rate, geometry, z, new)
        inner, moved, length = 0.0, 0.0, 0.0
        for i in range(size):
            inner += (query[0, i] - new[0, i]) * (new[0, i] - w[0, i])
            moved += (new[0, i] - w[0, i]) ** 2
            length += new[0, i] ** 2
        momentum = 1.0 if inner > 0 else momentum
        following = (1 + np.sqrt(1 + 4 * momentum * momentum)) / 2
        for i in range(size):
            query[0, i] = new[0, i] + (momentum - 1) / following * (new[0, i] - w[0, i])
            w[0, i] = new[0, i]
        momentum = following
        if moved <= tolerance * tolerance * length:
            break
    return np.sqrt(moved)


class ProximalModel:
    """One job of a psi without a scalar form."""

    def __init__(self, problem: Problem, numbers: Numbers, hessian: Array, linear: Array, start: Array) -> None:
        self.problem, self.numbers = problem, numbers
        self.hessian, self.linear, self.start = hessian, linear, start
        self.rate = np.array([1 / max(float(np.linalg.eigvalsh(hessian)[-1]), 1e-300)])
        primal = {"primal": problem.mirror.prox(problem.regularizer)}
        self.steps = specialize(accelerated_steps, on_block=primal)

    def minimize(self, w: Array, tolerance: float) -> Array:
        """Return the minimizer [P], from w [P]."""
        w, geometry = w[None].copy(), self.problem.geometry(self.numbers)
        for _ in range(ROUNDS):
            self.steps(self.hessian, self.linear, self.start, geometry, self.rate, GRADIENT_STEPS, tolerance, w)
            residual = self._residual(w[0])
            if np.linalg.norm(residual) <= tolerance * np.linalg.norm(w):
                break
            w = self._newton(w[0], residual, tolerance)[None]
        return w[0]

    def _moved(self, w: Array) -> Array:
        return w - self.rate[0] * (self.linear + self.hessian @ (w - self.start))

    def _prox(self, z: Array) -> Array:
        jobs = len(z)
        return self.problem.prox(z, np.repeat(self.rate, jobs), np.repeat(self.numbers, jobs))

    def _residual(self, w: Array) -> Array:
        return w - self._prox(self._moved(w)[None])[0]

    def _newton(self, w: Array, residual: Array, tolerance: float) -> Array:
        """Return w after Newton's method on the fixed-point equation, as long as the residual falls."""
        if len(w) > LARGEST_NEWTON:
            return w
        for _ in range(ROUNDS):
            z = self._moved(w)
            moves = np.diag(np.full(len(w), DIFFERENCE * max(float(np.abs(z).max()), 1e-300)))
            slopes = (self._prox(z + moves) - self._prox(z - moves)).T / (2 * moves[0, 0])
            matrix = np.eye(len(w)) - slopes @ (np.eye(len(w)) - self.rate[0] * self.hessian)
            if not np.isfinite(matrix).all():
                return w
            trial = w - np.linalg.lstsq(matrix, residual)[0]
            trial = self._prox(self._moved(trial)[None])[0]
            new = self._residual(trial)
            if not np.linalg.norm(new) < np.linalg.norm(residual):
                return w
            w, residual = trial, new
            if np.linalg.norm(residual) <= tolerance * np.linalg.norm(w):
                break
        return w
