"""Evaluation of models: metrics of every run (docs/paper.md, "Metrics"), metrics of the task, convergence tests.

`History` holds the metrics of a run at its evaluated rounds. Snapshots of the model (`record_path=true`) are for the
animations of the report.

The first convergence test compares the KKT residual with psi's strength or the initial gradient; it costs nothing at an
evaluated round. If it passes, the second test bounds the relative gap (problem/certificate.py), which does not depend
on the scales of the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from fco_cli.problem.certificate import (
    LARGEST_DIFFERENCED,
    LARGEST_MATRIX,
    ROUNDING,
    hessian,
    is_certified,
    separates_classes,
)
from fco_cli.problem.data import ClientData, RemoteRows
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.problem import Problem
from fco_cli.problem.risk import QuadraticRisk, own_losses
from fco_cli.tasks.base import Task

Metrics = dict[str, Array]  # name -> [J]
OwnMetrics = dict[str, tuple[Array, Array]]  # name -> the clients that have the metric [n], and its values [n, J]
CHUNK_BYTES = 64 * 2**20  # of personal models evaluated at once
MAX_SNAPSHOT_BYTES = 2**20  # bytes of all snapshots of a run
MAX_SNAPSHOTS = 40  # largest number of snapshots

Snapshots = dict[int, Array]  # round -> model [P]
LEAST_EVALUATED = 4  # rounds for an extrapolation
MAX_EXTRAPOLATION = 20  # times the rounds of the run
STALLED = "the residual hardly decreases; use a smaller hparams.client_lr or an exact method (docs/methods.md)"
TOO_FEW = "too few evaluated rounds for an estimate; increase hparams.rounds or decrease hparams.eval_every"
FEW_DIGITS = "the clients' sums have too few digits; use task.standardize=true or another method (docs/methods.md)"
LARGE_GAP = (
    "the KKT residual is small, but the objective may still be far from its minimum, as with features of different "
    "scales; standardize them (task.standardize=true) or run more rounds"
)

SEPARATED = "the model separates the classes, so that there is no finite solution without a penalty; set a regularizer"


def evaluate(task: Task, problem: Problem, models: Array, numbers: Numbers) -> Metrics:
    """Return the metrics of models [J, P]; for [J, M, P] (the local baseline) the median and quartiles over M."""
    if models.ndim == 2:
        return _evaluate(task, problem, models, numbers)
    # One job at a time: the gradients of all models could be larger than the data.
    jobs = [_evaluate(task, problem, w, np.repeat(numbers[[j]], len(w))) for j, w in enumerate(models)]
    metrics: Metrics = {}
    for name in jobs[0]:
        low, median, high = np.quantile([values[name] for values in jobs], [0.25, 0.5, 0.75], axis=1)
        metrics |= {name: median, f"{name}_q25": low, f"{name}_q75": high}
    return metrics


def _evaluate(task: Task, problem: Problem, w: Array, numbers: Numbers) -> Metrics:
    training = problem.risk(w)
    held_out = None if problem.validation is None else problem.validation(w, gradient=False)
    psi, residual = problem.psi(w, numbers), problem.kkt_residual(w, training.gradient, numbers)
    metrics = {"objective": training.value + psi, "train_loss": training.value, "kkt_residual": residual}
    if problem.regularizer.constraint:
        metrics["constraint_violation"] = problem.constraint_violation(w, numbers)
    if training.accuracy is not None:
        metrics["train_accuracy"] = training.accuracy
    if held_out is not None and problem.held_out is not None:
        metrics["validation_loss"] = held_out.value
        metrics["validation_objective"] = held_out.value + psi
        if held_out.accuracy is not None:
            metrics["validation_accuracy"] = held_out.accuracy
        own = task.held_out_metrics(problem, problem.held_out, w)
        metrics |= {f"validation_{name}": values for name, values in own.items()}
    return metrics | task.metrics(problem, w)


def concatenate(parts: Sequence[Metrics]) -> Metrics:
    """Return the metrics of several evaluations of the same jobs, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def evaluate_test(task: Task, problem: Problem, model: Array) -> dict[str, float]:
    """Return the metrics of a final model [P] on the test rows; the median for the local baseline's models [M, P]."""
    if problem.test is None:
        return {}
    w = model.reshape(-1, problem.layout.size)
    risk = problem.risk_on(problem.test)(w, gradient=False)
    metrics = {"loss": risk.value} | ({} if risk.accuracy is None else {"accuracy": risk.accuracy})
    metrics |= task.held_out_metrics(problem, problem.test, w)
    return {f"test_{name}": float(np.median(values)) for name, values in metrics.items()}


def evaluate_own(problem: Problem, jobs: int, models_of: Callable[[Array], Array]) -> OwnMetrics:
    """Return the metrics of personal models on their clients' own rows; models_of(clients [n]) returns [n, J, P]."""
    everyone = np.arange(problem.data.clients)
    metrics = _evaluate_own("own_train", problem, problem.data, everyone, everyone, jobs, models_of)
    if problem.held_out is not None and problem.held_out.trained_as is not None:
        trained = np.flatnonzero(problem.held_out.trained_as >= 0)
        if len(trained):
            owners = problem.held_out.trained_as[trained]
            metrics |= _evaluate_own("own_validation", problem, problem.held_out, trained, owners, jobs, models_of)
    return metrics


def _evaluate_own(
    prefix: str,
    problem: Problem,
    data: ClientData,
    clients: Array,
    owners: Array,
    jobs: int,
    models_of: Callable[[Array], Array],
) -> OwnMetrics:
    """Evaluate the models of `owners` on the rows of the clients `clients` of `data`, in chunks."""
    step = max(1, CHUNK_BYTES // (jobs * problem.layout.size * problem.dtype.itemsize))
    chunks = [slice(low, low + step) for low in range(0, len(clients), step)]
    losses = [own_losses(data, problem.model, problem.loss, models_of(owners[part]), clients[part]) for part in chunks]
    metrics = {f"{prefix}_loss": (owners, np.concatenate([loss for loss, _ in losses]))}
    accuracies = [accuracy for _, accuracy in losses if accuracy is not None]
    if accuracies:
        metrics[f"{prefix}_accuracy"] = (owners, np.concatenate(accuracies))
    return metrics


def summarize_own(own: OwnMetrics) -> Metrics:
    """Return the median, the quartiles and the worst decile over the clients.

    NaN if the value of some client is not finite, since its model has diverged.
    """
    metrics: Metrics = {}
    for name, (_, values) in own.items():
        values = np.where(np.isfinite(values), values, np.nan)
        worst = 0.1 if name.endswith("accuracy") else 0.9
        low, median, high, decile = np.quantile(values, [0.25, 0.5, 0.75, worst], axis=0)
        metrics |= {name: median, f"{name}_q25": low, f"{name}_q75": high, f"{name}_worst_decile": decile}
    return metrics


@dataclass(eq=False)  # Mapping.__eq__ compares the columns
class History(Mapping[str, list[float]]):
    """Mapping from the name of a metric to its column, stored by rows so that an evaluation is a single append."""

    names: tuple[str, ...] = ()
    rows: list[tuple[float, ...]] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[float]]) -> History:
        """Return the history with the given columns; raise ValueError if their lengths differ."""
        return cls(tuple(columns), list(zip(*columns.values(), strict=True)))

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.names:
            raise KeyError(name)
        index = self.names.index(name)
        return [row[index] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def as_snapshot(model: Array) -> Array:
    """Return the model in half precision, which is enough for a plot."""
    with np.errstate(over="ignore"):
        return model.astype(np.float16)


def snapshot_rounds(rounds: int, every: int, size: int) -> frozenset[int]:
    """Return the evaluated rounds to keep: the first, the last, and more in the early than in the late part.

    Models change most in the first rounds, so the kth of n snapshots is at the fraction (k / n)^2 of the run.
    """
    evaluated = np.unique([*range(0, rounds, every), rounds])
    count = min(MAX_SNAPSHOTS, MAX_SNAPSHOT_BYTES // (size * np.dtype(np.float16).itemsize), len(evaluated))
    if count < 2:
        return frozenset()
    targets = rounds * np.linspace(0, 1, count) ** 2
    nearest = np.abs(evaluated[:, None] - targets).argmin(axis=0)
    # If several targets have the same nearest round, use the following rounds instead.
    for i in range(1, count):
        nearest[i] = max(nearest[i], nearest[i - 1] + 1)
    return frozenset(evaluated[nearest].tolist())


def residual_threshold(problem: Problem, numbers: Numbers, tolerance: float, at_start: float | None = None) -> Array:
    """Return the KKT residual [J] at or below which each job passes the first test.

    `at_start` is the norm of the gradient at the start; by default it is computed.
    """
    at_start = problem.gradient_at_start if at_start is None else at_start
    rounding = ROUNDING * float(np.finfo(problem.dtype).eps) * at_start
    return np.maximum(tolerance * problem.kkt_scale(numbers, at_start), rounding)


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
    if separates_classes(problem, float(history["objective"][-1])):
        return replace(verdict, converged=False, advice=SEPARATED)
    if verdict.converged:
        gap = certified or is_certified(problem, numbers, model, tolerance)
        if gap is False:
            return replace(verdict, converged=False, relative_gap=gap, advice=LARGE_GAP)
        distance, bound = _distance(problem, model, float(residuals[-1]))
        return replace(verdict, distance=distance, bound=bound, relative_gap=gap)
    more = _more_rounds(rounds, residuals, threshold)
    if more is not None:
        advice = f"about {more} more rounds" + (f", or {faster}" if faster else "")
    elif len(rounds) < LEAST_EVALUATED:
        advice = TOO_FEW
    else:
        advice = STALLED.replace("use ", f"use {faster}, ") if faster else STALLED
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

    None if the residual does not decrease, or needs more than MAX_EXTRAPOLATION times the rounds of the run.
    """
    if len(rounds) < LEAST_EVALUATED or not (residuals > 0).all():
        return None
    rate = -_slope(rounds, np.log(residuals), 0.5)
    needed = math.log(residuals[-1] / threshold) / rate if rate > 0 else math.inf
    return int(float(f"{max(needed, 1):.1g}")) if needed < MAX_EXTRAPOLATION * rounds[-1] else None


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
