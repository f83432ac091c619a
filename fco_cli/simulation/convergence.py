"""Has a run converged? What its record says at its end, and when `hparams.rounds=auto` is done.

Two tests: the KKT residual, relative to psi's strength or to the gradient at the start, costs nothing at an evaluated
round; where it is small enough, the relative gap (problem/certificate.py) judges every feature in its own units
(docs/method.md, "Metrics").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fco_cli.problem.certificate import LARGEST_DIFFERENCED, LARGEST_MATRIX, ROUNDING, hessian, is_certified
from fco_cli.problem.data import Elsewhere
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import QuadraticRisk

UNEVEN = (
    "the KKT residual is small, but the objective may still be far from its minimum, as on features of uneven scales; "
    "standardize them (task.standardize=true), or take more rounds"
)


def residual_enough(problem: Problem, numbers: Numbers, tolerance: float) -> Array:
    """The KKT residual at which each job has converged: [J]."""
    rounding = ROUNDING * float(np.finfo(problem.dtype).eps) * problem.gradient_at_start
    return np.maximum(tolerance * problem.kkt_scale(numbers), rounding)


def is_due(residuals: Sequence[float], enough: float) -> bool:
    """Return whether the gap is to be computed after the last of the residuals of a run.

    The first, second, fourth, ... time that a residual is small enough: a gap costs more than a round.
    """
    times = sum(residual <= enough for residual in residuals)
    return residuals[-1] <= enough and times & (times - 1) == 0


def has_converged(
    problem: Problem, numbers: Numbers, tolerance: float, model: Array, residual: float, certified: bool
) -> bool:
    """Return whether one job, numbers [1] and model [P], has converged; its gap is computed unless it is certified."""
    if residual > residual_enough(problem, numbers, tolerance)[0]:
        return False
    return certified or is_certified(problem, numbers, model, tolerance) is not False


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
    relative_gap: bool | None = None  # whether it is small enough; None: not known

    @property
    def line(self) -> str:
        """One line for people."""
        where = f"KKT residual {self.kkt:.1e} of {self.relative_to}, objective {self.slope:+.1e} a round"
        if self.converged:
            most = "" if self.bound is None else f"; at most {self.bound:.0e}"
            known = self.distance is not None
            said = f": the pooled solution to {self.distance:.0e} (an estimate{most})" if known else ""
            alone = ", which alone was judged: the gap is unknown" if self.relative_gap is None else ""
            return f"converged{said}; {where}{alone}"
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
    certified: bool = False,
) -> Verdict:
    """Judge one job, numbers [1] and model [P]; `faster` is a setting that would hasten it, if any.

    `certified` says that its relative gap is known to be small enough.
    """
    residuals, rounds = np.array(history["kkt_residual"]), np.array(history["round"])
    enough, scale = float(residual_enough(problem, numbers, tolerance)[0]), float(problem.kkt_scale(numbers)[0])
    strength = "strength" in (numbers.dtype.names or ()) and numbers["strength"][0] == scale
    relative_to = "lambda" if strength else "the gradient at the start"
    slope = _slope(rounds, np.array(history["objective"]), 0.1)
    verdict = Verdict(bool(residuals[-1] <= enough), float(residuals[-1]) / scale, relative_to, slope)
    if isinstance(problem.data, Elsewhere) and not problem.data.exact:
        return replace(verdict, converged=False, advice="by evaluations with noise it cannot be judged")
    if verdict.converged:
        gap = certified or is_certified(problem, numbers, model, tolerance)
        if gap is False:
            return replace(verdict, converged=False, relative_gap=gap, advice=UNEVEN)
        distance, bound = _distance(problem, model, float(residuals[-1]))
        return replace(verdict, distance=distance, bound=bound, relative_gap=gap)
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
    if not known or not problem.regularizer.convex or len(model) > (LARGEST_MATRIX if exact else LARGEST_DIFFERENCED):
        return None, None
    matrix = hessian(problem, model)
    if matrix is None:
        return None, None
    moving = (model != 0) | ~problem.layout.regularized
    estimate = _condition(matrix[np.ix_(moving, moving)])
    bound = _condition(matrix) if exact else None
    return tuple(None if times is None else times * residual for times in (estimate, bound))  # type: ignore[return-value]


def _condition(matrix: Array) -> float | None:
    """(1 + L) / mu of a Hessian, unless mu is 0 up to rounding."""
    curvatures = np.linalg.eigvalsh(matrix)
    positive = curvatures[0] > 1e-12 * curvatures[-1]
    return float((1 + curvatures[-1]) / curvatures[0]) if positive else None
