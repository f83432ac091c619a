"""Has a run converged? What its record says at its end, and when `hparams.rounds=auto` is done.

The KKT residual is 0 at a solution and nowhere else; relative to psi's strength (to the gradient at the start where psi
has none) it says how far a run is from there (docs/method.md, "Metrics").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import QuadraticRisk

ROUNDING = 16  # units of the last digit of a gradient: no residual falls further
LARGEST_CURVATURE, LARGEST_HESSIAN = 2048, 256  # parameters: of a matrix that is there, and of one to be measured
STEP = 1e-4  # by which gradients are differenced, relative to the weights' length


def residual_enough(problem: Problem, numbers: Numbers, tolerance: float) -> Array:
    """The KKT residual at which each job has converged: [J]."""
    rounding = ROUNDING * float(np.finfo(problem.dtype).eps) * problem.gradient_at_start
    return np.maximum(tolerance * problem.kkt_scale(numbers), rounding)


@dataclass(frozen=True)
class Verdict:
    """What a record says of a run's convergence."""

    converged: bool
    kkt: float  # the last KKT residual, relative
    relative_to: str
    slope: float  # of the objective, per round, over the last tenth of the rounds
    more_rounds: int | None = None  # until it would have converged, if it goes on falling as it does
    distance: float | None = None  # of the model to the solution: an estimate
    bound: float | None = None  # on it
    advice: str = ""

    @property
    def line(self) -> str:
        """One line for people."""
        where = f"KKT residual {self.kkt:.1e} of {self.relative_to}, objective {self.slope:+.1e} a round"
        if self.converged:
            most = "" if self.bound is None else f"; at most {self.bound:.0e}"
            known = self.distance is not None
            said = f": the pooled solution to {self.distance:.0e} (an estimate{most})" if known else ""
            return f"converged{said}; {where}"
        return f"not converged: {self.advice}; {where}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "line": self.line}


def judge(
    problem: Problem,
    numbers: Numbers,
    tolerance: float,
    model: Array,
    history: Mapping[str, list[float]],
    faster: str | None,
) -> Verdict:
    """The verdict on one job, numbers [1] and model [P]; `faster` is a setting that would hasten it, if any."""
    residuals, rounds = np.array(history["kkt_residual"]), np.array(history["round"])
    enough, scale = float(residual_enough(problem, numbers, tolerance)[0]), float(problem.kkt_scale(numbers)[0])
    strength = "strength" in (numbers.dtype.names or ()) and numbers["strength"][0] == scale
    relative_to = "lambda" if strength else "the gradient at the start"
    slope = _slope(rounds, np.array(history["objective"]), 0.1)
    verdict = Verdict(bool(residuals[-1] <= enough), float(residuals[-1]) / scale, relative_to, slope)
    if isinstance(problem.data, Elsewhere) and not problem.data.exact:
        return replace(verdict, converged=False, advice="by evaluations with noise it cannot be judged")
    if verdict.converged:
        distance, bound = _distance(problem, model, float(residuals[-1]))
        return replace(verdict, distance=distance, bound=bound)
    more = _more_rounds(rounds, residuals, enough)
    if more is None:
        advice = "the residual no longer falls; a smaller hparams.client_lr, or an exact method (docs/methods.md)"
    else:
        advice = f"about {more} more rounds" + (f", or {faster}" if faster else "")
    return replace(verdict, more_rounds=more, advice=advice)


def _slope(rounds: Array, values: Array, share: float) -> float:
    """By least squares over the last share of the rounds, two evaluations at least."""
    last = max(2, math.ceil(share * len(rounds)))
    rounds, values = rounds[-last:], values[-last:]
    if len(rounds) < 2 or not np.isfinite(values).all():
        return 0.0
    centered = rounds - rounds.mean()
    return float((centered * (values - values.mean())).sum() / (centered**2).sum())


def _more_rounds(rounds: Array, residuals: Array, enough: float) -> int | None:
    """By the pace at which the residual fell over the last half of the rounds; none if that leads nowhere."""
    if len(rounds) < 4 or not (residuals > 0).all():
        return None
    pace = -_slope(rounds, np.log(residuals), 0.5)
    needed = math.log(residuals[-1] / enough) / pace if pace > 0 else math.inf
    return int(float(f"{max(needed, 1):.1g}")) if needed < 1000 * rounds[-1] else None


def _distance(problem: Problem, model: Array, residual: float) -> tuple[float | None, float | None]:
    """An estimate of |w - w*|, and a bound on it: (1 + L) / mu times the residual, for F with curvatures mu to L.

    For w* is where -grad F is in the subdifferential of psi, which is monotone. A squared loss has one Hessian, known
    from sums over the clients: then it is a bound. The estimate takes the Hessian at the model, among the weights that
    are not 0: it holds if the zeros are right.
    """
    exact = isinstance(problem.risk, QuadraticRisk)
    known = exact or (problem.model.convex and problem.dtype == np.float64)
    if not known or not problem.regularizer.convex or len(model) > (LARGEST_CURVATURE if exact else LARGEST_HESSIAN):
        return None, None
    matrix = 2 * problem.risk.matrix if isinstance(problem.risk, QuadraticRisk) else hessian(problem, model)
    moving = (model != 0) | ~problem.layout.regularized
    estimate = _condition(matrix[np.ix_(moving, moving)])
    bound = _condition(matrix) if exact else None
    return tuple(None if times is None else times * residual for times in (estimate, bound))  # type: ignore[return-value]


def _condition(matrix: Array) -> float | None:
    """(1 + L) / mu of a Hessian, unless mu is 0 up to rounding."""
    curvatures = np.linalg.eigvalsh(matrix)
    positive = curvatures[0] > 1e-12 * curvatures[-1]
    return float((1 + curvatures[-1]) / curvatures[0]) if positive else None


def hessian(problem: Problem, model: Array) -> Array:
    """Of F at a model [P], by differences of gradients: [P, P]. Clients would send gradients only."""
    steps = STEP * max(1.0, float(np.linalg.norm(model))) * np.eye(len(model))
    rise = problem.risk(model + steps).gradient - problem.risk(model - steps).gradient
    rise /= 2 * steps[0, 0]
    return (rise + rise.T) / 2
