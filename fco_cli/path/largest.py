"""Where a path begins: the strength at which the null model is left, the radius at which a ball no longer binds.

Both are known from sums over the clients, a gradient or a loss at a time, and from psi's own prox: a strength is large
enough if the prox maps the null model's gradient to 0, a radius if it leaves the free solution where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer

DIALS = ("strength", "radius")
HUGE = 1e12  # a strength under which nothing is left of what it penalizes
DOUBLINGS, HALVINGS = 60, 60
ABOVE = 1 + 1e-6  # of the largest, where a path begins: rounding must not let a weight in
FREE_ITERATIONS = 200  # on the way to a free solution, which separable classes put at infinity


def dial_of(psi: Regularizer) -> str:
    """The number of psi that a path goes along."""
    require(psi.convex, "regularizer", psi.name, "a convex one: a path follows one solution")
    mine = [field.name for field in fields(psi)]
    for dial in DIALS:
        if dial in mine:
            return dial
    raise UserError(f"regularizer: got {psi.name!r}, must be one with a strength or a radius: a path goes along it")


def turned(psi: Regularizer, value: float) -> Regularizer:
    """The same with another strength or radius."""
    changed: dict[str, Any] = {dial_of(psi): float(value)}
    return replace(psi, **changed)


def path_values(problem: Problem, count: int, ratio: float, largest: float | None = None) -> Array:
    """Strengths from the largest down, radii from the smallest up: the null model's end comes first."""
    if largest is None:
        largest = ABOVE * find_largest(problem)
    elif dial_of(problem.regularizer) == "strength":
        _check_left(problem, largest, ratio)
    values = largest * np.geomspace(1, ratio, count)
    return values if dial_of(problem.regularizer) == "strength" else values[::-1].copy()


def find_largest(problem: Problem) -> float:
    """The smallest strength at which the null model is the solution, or the smallest radius that holds the free one."""
    psi = problem.regularizer
    if dial_of(psi) == "radius":
        free = fitted(problem, np.ones(problem.layout.size, dtype=bool), FREE_ITERATIONS)
        largest = _smallest(lambda radius: bool((_prox(problem, turned(psi, radius), free) == free).all()))
        allowed = "a task with something to learn: its best model without a regularizer is 0"
        require(largest is None or largest > 0, "task", problem.loss.name, allowed)
    else:
        kept, gradient = unpenalized(problem), _penalized_gradient(problem)
        if np.linalg.norm(gradient) <= 1e-12 * max(problem.gradient_at_start, 1e-300):
            raise UserError("path: no strength leaves the null model: no feature has anything to do with the labels")
        largest = _smallest(lambda strength: not _prox(problem, turned(psi, strength), gradient)[~kept].any())
    if largest is None:
        raise UserError(f"path.largest: got null, must be a number for {psi.name}: no strength makes its model null")
    return largest


def _penalized_gradient(problem: Problem) -> Array:
    """Of F at the null model [P], 0 for what is not penalized."""
    gradient = problem.risk(null_model(problem)[None]).gradient[0]
    gradient[unpenalized(problem)] = 0
    return gradient


def _check_left(problem: Problem, largest: float, ratio: float) -> None:
    """Refuse a path on which every model is the null model."""
    psi, gradient = turned(problem.regularizer, largest * ratio), _penalized_gradient(problem)
    left = _prox(problem, psi, gradient)[~unpenalized(problem)].any()
    lower = f"smaller: down to {largest * ratio:g} (path.ratio={ratio:g}) no strength leaves the null model"
    require(bool(left), "path.largest", largest, lower)


def unpenalized(problem: Problem) -> Array:
    """What even a huge strength leaves alone, the bias first of all: a mask [P]."""
    probe = 1 + np.arange(problem.layout.size) / problem.layout.size
    return _prox(problem, turned(problem.regularizer, HUGE), probe) == probe


def null_model(problem: Problem) -> Array:
    """The best model of what is not penalized; all other weights are 0."""
    return fitted(problem, unpenalized(problem))


def fitted(problem: Problem, free: Array, iterations: int = 1000) -> Array:
    """The minimum of F over some of the weights, the others 0: clients send a loss and a gradient at a time."""

    def at(part: Array) -> tuple[float, Array]:
        w = np.zeros((1, len(free)))
        w[0, free] = part
        found = problem.risk(w)
        return float(found.value[0]), found.gradient[0, free].astype(float)

    w = np.zeros(len(free))
    with np.errstate(all="ignore"):
        options = {"maxiter": iterations, "ftol": 1e-15, "gtol": 1e-12 * max(problem.gradient_at_start, 1e-300)}
        w[free] = minimize(at, w[free], jac=True, method="L-BFGS-B", options=options).x
    return w


def _prox(problem: Problem, psi: Regularizer, z: Array) -> Array:
    return problem.prox(z[None].astype(float), np.ones(1), psi.numbers)[0]


def _smallest(enough: Callable[[float], bool]) -> float | None:
    """The smallest number that is enough, to the last digits; none if none is."""
    high = next((2.0**power for power in range(-DOUBLINGS, DOUBLINGS) if enough(2.0**power)), None)
    if high is None:
        return None
    low = high / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
