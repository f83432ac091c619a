"""Convergence tests: the stopping rule of `hparams.rounds=auto` and the verdict in a run's record.

The first test compares the KKT residual with psi's strength or the initial gradient; it costs nothing at an evaluated
round. If it passes, the second test bounds the relative gap (problem/certificate.py), which does not depend on the
scales of the features (docs/method.md, "Metrics").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fco_cli.problem.certificate import LARGEST_DIFFERENCED, LARGEST_MATRIX, ROUNDING, hessian, is_certified
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import QuadraticRisk

STALLED = "the residual no longer decreases; use a smaller hparams.client_lr or an exact method (docs/methods.md)"
LARGE_GAP = (
    "the KKT residual is small, but the objective may still be far from its minimum, as with features of different "
    "scales; standardize them (task.standardize=true) or run more rounds"
)


def residual_threshold(problem: Problem, numbers: Numbers, tolerance: float) -> Array:
    """Return the KKT residual [J] at or below which each job passes the first test."""
    rounding = ROUNDING * float(np.finfo(problem.dtype).eps) * problem.gradient_at_start
    return np.maximum(tolerance * problem.kkt_scale(numbers), rounding)


def is_gap_due(residuals: Sequence[float], threshold: float) -> bool:
    """Return True if the gap should be computed after the last of a run's residuals.

    It is computed at the first, second, fourth, ... residual below the threshold, since it costs more than a round.
    """
    times = sum(residual <= threshold for residual in residuals)
    return residuals[-1] <= threshold and times & (times - 1) == 0


def has_converged(
    problem: Problem, numbers: Numbers, tolerance: float, model: Array, residual: float, certified: bool
) -> bool:
    """Return True if one job, numbers [1] and model [P], has converged; compute its gap unless it is certified."""
    if residual > residual_threshold(problem, numbers, tolerance)[0]:
        return False
    return certified or is_certified(problem, numbers, model, tolerance) is not False


@dataclass(frozen=True)
class Verdict:
    """Convergence of a run, as stored in its record."""

    converged: bool
    kkt: float  # the last KKT residual, relative
    relative_to: str
    slope: float  # of the objective, per round, over the last tenth of the rounds
    more_rounds: int | None = None  # until convergence, extrapolated from the residuals
    distance: float | None = None  # from the model to the solution, an estimate
    bound: float | None = None  # upper bound on the distance
    advice: str = ""
    relative_gap: bool | None = None  # True if it is below the tolerance, None if unknown

    @property
    def line(self) -> str:
        """Summary in one line."""
        measured = f"KKT residual {self.kkt:.1e} of {self.relative_to}, objective {self.slope:+.1e} per round"
        if not self.converged:
            return f"not converged: {self.advice}; {measured}"
        bound = "" if self.bound is None else f"; at most {self.bound:.0e}"
        is_known = self.distance is not None
        distance = f": within {self.distance:.0e} of the pooled solution (an estimate{bound})" if is_known else ""
        gap = " (the gap is unknown)" if self.relative_gap is None else ""
        return f"converged{distance}; {measured}{gap}"

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
    """Return the verdict on one job, with numbers [1] and model [P].

    `faster` is a setting that would speed up convergence, if any. `certified` is True if the relative gap is known to
    be below the tolerance.
    """
    residuals, rounds = np.array(history["kkt_residual"]), np.array(history["round"])
    threshold, scale = float(residual_threshold(problem, numbers, tolerance)[0]), float(problem.kkt_scale(numbers)[0])
    is_strength = "strength" in (numbers.dtype.names or ()) and numbers["strength"][0] == scale
    relative_to = "lambda" if is_strength else "the initial gradient"
    slope = _slope(rounds, np.array(history["objective"]), 0.1)
    verdict = Verdict(bool(residuals[-1] <= threshold), float(residuals[-1]) / scale, relative_to, slope)
    if isinstance(problem.data, RemoteRows) and not problem.data.is_exact:
        return replace(verdict, converged=False, advice="convergence cannot be tested with noisy evaluations")
    if verdict.converged:
        gap = certified or is_certified(problem, numbers, model, tolerance)
        if gap is False:
            return replace(verdict, converged=False, relative_gap=gap, advice=LARGE_GAP)
        distance, bound = _distance(problem, model, float(residuals[-1]))
        return replace(verdict, distance=distance, bound=bound, relative_gap=gap)
    more = _more_rounds(rounds, residuals, threshold)
    advice = STALLED if more is None else f"about {more} more rounds" + (f", or {faster}" if faster else "")
    return replace(verdict, more_rounds=more, advice=advice)


def _slope(rounds: Array, values: Array, share: float) -> float:
    """Return the least-squares slope over the last share of the rounds, at least two evaluations."""
    last = max(2, math.ceil(share * len(rounds)))
    rounds, values = rounds[-last:], values[-last:]
    if len(rounds) < 2 or not np.isfinite(values).all():
        return 0.0
    centered = rounds - rounds.mean()
    return float((centered * (values - values.mean())).sum() / (centered**2).sum())


def _more_rounds(rounds: Array, residuals: Array, threshold: float) -> int | None:
    """Return the number of rounds until the residual reaches the threshold, extrapolated from the last half.

    None if the residual does not decrease, or too slowly.
    """
    if len(rounds) < 4 or not (residuals > 0).all():
        return None
    rate = -_slope(rounds, np.log(residuals), 0.5)
    needed = math.log(residuals[-1] / threshold) / rate if rate > 0 else math.inf
    return int(float(f"{max(needed, 1):.1g}")) if needed < 1000 * rounds[-1] else None


def _distance(problem: Problem, model: Array, residual: float) -> tuple[float | None, float | None]:
    """Return an estimate of |w - w*| and a bound on it, (1 + L) / mu times the residual for mu I <= Hessian <= L I.

    The bound follows from -grad F(w*) being in the subdifferential of psi, which is monotone. It holds for a squared
    loss, whose Hessian is constant and known from sums over the clients. The estimate uses the Hessian at the model,
    restricted to the nonzero weights; it is valid if the support is correct.
    """
    is_quadratic = isinstance(problem.risk, QuadraticRisk)
    has_hessian = is_quadratic or (problem.model.convex and problem.dtype == np.float64)
    largest = LARGEST_MATRIX if is_quadratic else LARGEST_DIFFERENCED
    if not has_hessian or not problem.regularizer.convex or len(model) > largest:
        return None, None
    matrix = hessian(problem, model)
    if matrix is None:
        return None, None
    support = (model != 0) | ~problem.layout.regularized
    estimate = _condition(matrix[np.ix_(support, support)])
    bound = _condition(matrix) if is_quadratic else None
    return tuple(None if factor is None else factor * residual for factor in (estimate, bound))  # type: ignore[return-value]


def _condition(matrix: Array) -> float | None:
    """Return (1 + L) / mu of a Hessian; None if mu is 0 up to rounding."""
    eigenvalues = np.linalg.eigvalsh(matrix)
    is_positive = eigenvalues[0] > 1e-12 * eigenvalues[-1]
    return float((1 + eigenvalues[-1]) / eigenvalues[0]) if is_positive else None
