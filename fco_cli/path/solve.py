"""Values of a path and the solutions along it.

Values begin at the smallest strength whose solution is the null model, or end at the smallest inactive radius. Both
limits are found from sums over the clients (losses and gradients) and from the proximal operator of psi. A strength is
large enough if the prox maps the gradient at the null model to 0; a radius is large enough if the prox leaves the
unconstrained solution unchanged.

`solve_by_rounds` solves one fit by the algorithm of the run. All strengths form one stack, started at the null model
and run until each has converged. Smaller stacks with warm starts would save at most a third of the gradients but need
more rounds (docs/path.md). A stack is therefore divided only if it does not fit in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fco_cli.algorithms import Varying
from fco_cli.client_rate import relative
from fco_cli.config import Run
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.engine import BATCH_SECONDS, Simulation
from fco_cli.simulation.evaluate import has_converged
from fco_cli.simulation.execute import max_jobs_per_round
from fco_cli.simulation.hparams import AUTO
from fco_cli.simulation.jobs import Job, Setup
from fco_cli.simulation.problems import automatic_rate_for, clients_factory

Part = dict[str, Array]  # intermediate result: the models of a fit, or the state of a solve
STORE_SECONDS = 1.0  # between two stored states; a round that takes longer is stored at once
PATH_PARAMETERS = ("strength", "radius")
HUGE_STRENGTH = 1e12  # the prox maps every penalized weight to 0
DOUBLINGS, HALVINGS = 60, 60
MARGIN = 1 + 1e-6  # factor on the largest value, so that rounding cannot leave a weight non-zero
FREE_ITERATIONS = 200  # for the unconstrained solution, which is at infinity if the classes are separable
MAX_STATE_BYTES = 512 * 2**20  # of a stack

NullGradient = Callable[[Problem], Array]  # returns the gradient of F at the null model [P]


def path_parameter(psi: Regularizer) -> str:
    """Return the name of the field of psi that varies along a path; raise UserError if there is none."""
    require(psi.convex, "regularizer", psi.name, "convex: a path needs unique solutions")
    names = [one.name for one in fields(psi)]
    for parameter in PATH_PARAMETERS:
        if parameter in names:
            return parameter
    raise UserError(f"regularizer: got {psi.name!r}, must be one with a strength or a radius, which a path varies")


def with_value(psi: Regularizer, value: float) -> Regularizer:
    """Return psi with another strength or radius."""
    changes: dict[str, Any] = {path_parameter(psi): float(value)}
    return replace(psi, **changes)


def path_values(
    problem: Problem,
    count: int,
    ratio: float,
    largest: float | None = None,
    null_gradient: NullGradient | None = None,
) -> Array:
    """Return decreasing strengths or increasing radii [count]: the simplest model comes first.

    `null_gradient` computes the gradient of F at the null model; default: from gradients only.
    """
    null_gradient = null_gradient or gradient_at_null_model
    if largest is None:
        largest = MARGIN * find_largest(problem, null_gradient)
    elif path_parameter(problem.regularizer) == "strength":
        _check_leaves_null_model(problem, largest, ratio, null_gradient)
    values = largest * np.geomspace(1, ratio, count)
    return values if path_parameter(problem.regularizer) == "strength" else values[::-1].copy()


def gradient_at_null_model(problem: Problem) -> Array:
    """Return the gradient of F at the null model [P]."""
    return problem.risk(null_model(problem)[None]).gradient[0]


def find_largest(problem: Problem, null_gradient: NullGradient = gradient_at_null_model) -> float:
    """Return the smallest strength with a null solution, or the smallest radius that contains the unconstrained one."""
    psi = problem.regularizer
    if path_parameter(psi) == "radius":
        free = minimize_risk(problem, np.ones(problem.layout.size, dtype=bool), FREE_ITERATIONS)
        largest = _smallest_sufficient(
            lambda radius: bool((_prox(problem, with_value(psi, radius), free) == free).all())
        )
        allowed = "one whose solution without a regularizer is not 0"
        require(largest is None or largest > 0, "task", problem.loss.name, allowed)
    else:
        unpenalized, gradient = unpenalized_mask(problem), _penalized_gradient(problem, null_gradient)
        if np.linalg.norm(gradient) <= 1e-12 * max(problem.gradient_at_start, 1e-300):
            raise UserError(
                "path: the null model is optimal at every strength; no feature is correlated with the labels"
            )
        largest = _smallest_sufficient(
            lambda strength: not _prox(problem, with_value(psi, strength), gradient)[~unpenalized].any()
        )
    if largest is None:
        raise UserError(
            f"path.largest: got null, must be a number for {psi.name}, whose solution is never the null model"
        )
    return largest


def _penalized_gradient(problem: Problem, null_gradient: NullGradient) -> Array:
    """Return the gradient of F at the null model [P], with 0 for unpenalized weights."""
    gradient = null_gradient(problem).copy()
    gradient[unpenalized_mask(problem)] = 0
    return gradient


def _check_leaves_null_model(problem: Problem, largest: float, ratio: float, null_gradient: NullGradient) -> None:
    """Raise UserError if every model of the path is the null model."""
    psi, gradient = with_value(problem.regularizer, largest * ratio), _penalized_gradient(problem, null_gradient)
    has_nonzeros = _prox(problem, psi, gradient)[~unpenalized_mask(problem)].any()
    allowed = f"smaller: every model down to {largest * ratio:g} (path.ratio={ratio:g}) is the null model"
    require(bool(has_nonzeros), "path.largest", largest, allowed)


def unpenalized_mask(problem: Problem) -> Array:
    """Return a mask [P] of the weights that no strength changes, such as the bias."""
    probe = 1 + np.arange(problem.layout.size) / problem.layout.size
    return _prox(problem, with_value(problem.regularizer, HUGE_STRENGTH), probe) == probe


def null_model(problem: Problem) -> Array:
    """Return the model [P] that minimizes F over the unpenalized weights; all other weights are 0."""
    return minimize_risk(problem, unpenalized_mask(problem))


def minimize_risk(problem: Problem, free: Array, iterations: int = 1000) -> Array:
    """Return the minimizer [P] of F over the weights of the mask `free` [P], with all other weights 0.

    L-BFGS needs only the loss and the gradient of every client.
    """

    def evaluate(free_weights: Array) -> tuple[float, Array]:
        w = np.zeros((1, len(free)))
        w[0, free] = free_weights
        risk = problem.risk(w)
        return float(risk.value[0]), risk.gradient[0, free].astype(float)

    w = np.zeros(len(free))
    with np.errstate(all="ignore"):
        options = {"maxiter": iterations, "ftol": 1e-15, "gtol": 1e-12 * max(problem.gradient_at_start, 1e-300)}
        w[free] = minimize(evaluate, w[free], jac=True, method="L-BFGS-B", options=options).x
    return w


def _prox(problem: Problem, psi: Regularizer, z: Array) -> Array:
    return problem.prox(z[None].astype(float), np.ones(1), psi.numbers)[0]


def _smallest_sufficient(is_enough: Callable[[float], bool]) -> float | None:
    """Return the smallest number for which `is_enough` holds, by bisection; None if there is none."""
    high = next((2.0**power for power in range(-DOUBLINGS, DOUBLINGS) if is_enough(2.0**power)), None)
    if high is None:
        return None
    low = high / 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


class Cache:
    """Storage of intermediate results; this one stores nothing."""

    is_persistent = False

    def load(self, name: str) -> Part | None:
        """Return a stored part, or None."""
        return None

    def store(self, name: str, part: Part) -> None:
        """Store a part."""


@dataclass
class Checkpoint:
    """State of an unfinished solve in a cache; a solve that is killed resumes from it with the same bits."""

    cache: Cache = field(default_factory=Cache)
    name: str = "rounds"
    stored_at: float = field(default_factory=time.monotonic)

    def load(self) -> Part | None:
        return self.cache.load(self.name)

    def store(self, state: Callable[[], Part]) -> None:
        """Store the state, unless nothing is stored or another one was stored a moment ago."""
        if self.cache.is_persistent and time.monotonic() - self.stored_at >= STORE_SECONDS:
            self.cache.store(self.name, state())
            self.stored_at = time.monotonic()


@dataclass(frozen=True)
class Solutions:
    """Models of some values of a path, with their convergence."""

    models: Array  # [J, P]
    rounds: Array  # [J]
    residuals: Array  # [J], relative KKT residuals
    converged: Array  # [J]
    train_losses: Array  # [J], F at the models

    def as_arrays(self) -> dict[str, Array]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def joined(cls, parts: Sequence[Solutions]) -> Solutions:
        """Return the solutions of consecutive parts of a path as one."""
        names = parts[0].as_arrays()
        return cls(**{name: np.concatenate([part.as_arrays()[name] for part in parts]) for name in names})

    def take(self, indices: list[int]) -> Solutions:
        """Return the solutions at the given indices."""
        return Solutions(**{name: values[indices] for name, values in self.as_arrays().items()})


def problem_for(run: Run, data: TaskData) -> Problem:
    """Return the problem of the run on the training rows of `data`."""
    return data.to_problem(run.regularizer, run.mirror, run.hparams.weighting)


def solve_by_rounds(
    run: Run,
    data: TaskData,
    regularizers: list[Regularizer],
    tolerance: float,
    on_round: Callable[[], None] = lambda: None,
    start: Array | None = None,
) -> Solutions:
    """Solve for every regularizer of a list by the run's algorithm; all are of one kind and differ in numbers only.

    Models start at `start` [J, P]. By default, the first stack starts at the null model, and every other one at the
    last model of the stack before it.
    """
    problem = replace(problem_for(run, data), held_out=None, test=None)
    hparams = replace(run.hparams, rounds=AUTO, tolerance=tolerance)
    run.check_clients(problem.data.clients)
    setup = Setup(run.task, problem, hparams, run.seed, run.algo, clients=clients_factory(problem, hparams, run.seed))
    factor = relative(run.hparams.client_lr)
    rate = float(run.hparams.client_lr) if factor is None else factor * automatic_rate_for(run, problem)
    jobs: list[Job] = []
    size = max_jobs_per_round(run, problem, MAX_STATE_BYTES)
    for low in range(0, len(regularizers), size):
        part = regularizers[low : low + size]
        varying = Varying(
            np.full(len(part), rate, problem.dtype),
            np.full(len(part), run.hparams.server_lr, problem.dtype),
            stack_numbers(part),
            stack_numbers([run.algo] * len(part)),
        )
        block = [Job() for _ in part]
        initial = np.tile(_warm_start(jobs, problem), (len(part), 1)) if start is None else start[low : low + size]
        simulation = Simulation(setup, block, varying, start=initial)
        while simulation.advance(BATCH_SECONDS):
            on_round()
        jobs += block
    return _as_solutions(run, jobs, regularizers, problem, tolerance)


def _warm_start(jobs: list[Job], problem: Problem) -> Array:
    """Return the model of the last job; without jobs, the null model or the task's start."""
    if not jobs:
        is_penalty = not problem.regularizer.constraint and hasattr(problem.regularizer, "strength")
        return null_model(problem) if is_penalty else problem.model.initial()
    assert jobs[-1].model is not None
    return jobs[-1].model


def _as_solutions(
    run: Run, jobs: list[Job], regularizers: list[Regularizer], problem: Problem, tolerance: float
) -> Solutions:
    """Return the jobs' models; raise UserError if one has diverged."""
    for job, psi in zip(jobs, regularizers, strict=True):
        if job.diverged is not None:
            numbers = " ".join(
                f"{key} {value:.3g}" for key, value in asdict(psi).items() if isinstance(value, int | float)
            )
            raise UserError(
                f"{run.algo.name} diverged at {psi.name} {numbers}; use a smaller hparams.client_lr, or auto"
            )
    models, residuals = [job.model for job in jobs], [job.history["kkt_residual"][-1] for job in jobs]
    converged = [
        has_converged(problem, psi.numbers, tolerance, model, residual, job.certified)  # type: ignore[arg-type]
        for job, psi, model, residual in zip(jobs, regularizers, models, residuals, strict=True)
    ]
    relative_residuals = np.array(residuals) / problem.kkt_scale(stack_numbers(regularizers))
    rounds = np.array([job.round for job in jobs])
    train_losses = np.array([job.history["train_loss"][-1] for job in jobs])
    return Solutions(np.array(models, dtype=float), rounds, relative_residuals, np.array(converged), train_losses)
