"""Solutions along a path: one stack of all strengths, started at the null model and run until each has converged.

Smaller stacks with warm starts would save at most a third of the gradients but need more rounds (docs/path.md). A stack
is therefore divided only if it does not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from fco_cli.algorithms import Varying
from fco_cli.client_rate import relative
from fco_cli.config import Run
from fco_cli.errors import UserError
from fco_cli.path.values import null_model, with_value
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.convergence import has_converged
from fco_cli.simulation.engine import BATCH_SECONDS, Job, Setup, Simulation
from fco_cli.simulation.execute import max_jobs_per_round
from fco_cli.simulation.hparams import AUTO
from fco_cli.simulation.problems import automatic_rate_for, clients_factory

MAX_STATE_BYTES = 512 * 2**20  # of a stack


@dataclass(frozen=True)
class Solutions:
    """Models of some values of a path, with their convergence."""

    models: Array  # [J, P]
    rounds: Array  # [J]
    residuals: Array  # [J], relative KKT residuals
    converged: Array  # [J]

    def as_arrays(self) -> dict[str, Array]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in ("models", "rounds", "residuals", "converged")}

    def take(self, indices: list[int]) -> Solutions:
        """Return the solutions at the given indices."""
        return Solutions(**{name: values[indices] for name, values in self.as_arrays().items()})


def problem_for(run: Run, data: TaskData) -> Problem:
    """Return the problem of the run on the training rows of `data`."""
    return data.to_problem(run.regularizer, run.mirror, run.hparams.weighting)


def solve_path(
    run: Run, data: TaskData, values: Array, tolerance: float, on_round: Callable[[], None], start: Array | None = None
) -> Solutions:
    """Solve for every value, from `start` [J, P] or from the null model.

    Without `start`, every stack after the first starts at the last model of the stack before it.
    """
    return solve(run, data, [with_value(run.regularizer, value) for value in values], tolerance, on_round, start)


def solve(
    run: Run,
    data: TaskData,
    regularizers: list[Regularizer],
    tolerance: float,
    on_round: Callable[[], None] = lambda: None,
    start: Array | None = None,
) -> Solutions:
    """Solve for every regularizer of a list; all are of one kind and differ in numbers only (see `solve_path`)."""
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
    return Solutions(np.array(models, dtype=float), rounds, relative_residuals, np.array(converged))
