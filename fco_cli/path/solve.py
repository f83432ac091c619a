"""The models along a path: one stack of strengths, from the null model, each until it has converged.

Blocks of fewer strengths, each from where the last one ended, need a third fewer gradients at best, but more rounds
(docs/path.md): a stack is only divided where it would not fit the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from fco_cli.algorithms import Varying
from fco_cli.client_rate import relative
from fco_cli.config import Run
from fco_cli.errors import UserError
from fco_cli.path.largest import null_model, turned
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import stack_numbers
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.convergence import has_converged
from fco_cli.simulation.engine import PATIENCE, Job, Setup, Simulation
from fco_cli.simulation.hparams import AUTO
from fco_cli.sweeps.problems import automatic_rate_for, holder_of
from fco_cli.sweeps.runner import jobs_at_once

MEMORY = 512 * 2**20  # bytes of a stack's state


@dataclass(frozen=True)
class Solved:
    """Of every value of a path."""

    models: Array  # [J, P]
    rounds: Array  # [J]
    residuals: Array  # [J], KKT, relative
    converged: Array  # [J]

    def as_arrays(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in ("models", "rounds", "residuals", "converged")}

    def take(self, places: list[int]) -> Solved:
        """Return the solutions at some places."""
        return Solved(**{name: values[places] for name, values in self.as_arrays().items()})


def problem_on(run: Run, data: TaskData) -> Problem:
    """What the run minimizes, on the training rows of some data."""
    return data.joined(run.regularizer, run.mirror, run.hparams.weighting)


def solve_path(
    run: Run, data: TaskData, values: Array, tolerance: float, on_round: Callable[[], None], start: Array | None = None
) -> Solved:
    """Solve for every value, from `start` [J, P] or from the null model (a stack's successor: from its last one)."""
    return solve(run, data, [turned(run.regularizer, value) for value in values], tolerance, on_round, start)


def solve(
    run: Run,
    data: TaskData,
    regularizers: list[Regularizer],
    tolerance: float,
    on_round: Callable[[], None] = lambda: None,
    start: Array | None = None,
) -> Solved:
    """The same for regularizers of one kind, whatever their numbers."""
    problem = replace(problem_on(run, data), held_out=None, test=None)
    hparams = replace(run.hparams, rounds=AUTO, tolerance=tolerance)
    run.check_clients(problem.data.clients)
    setup = Setup(run.task, problem, hparams, run.seed, run.algo, clients=holder_of(problem, hparams, run.seed))
    times = relative(run.hparams.client_lr)
    rate = float(run.hparams.client_lr) if times is None else times * automatic_rate_for(run, problem)
    jobs: list[Job] = []
    size = jobs_at_once(run, problem, MEMORY)
    for low in range(0, len(regularizers), size):
        part = regularizers[low : low + size]
        varying = Varying(
            np.full(len(part), rate, problem.dtype),
            np.full(len(part), run.hparams.server_lr, problem.dtype),
            stack_numbers(part),
            stack_numbers([run.algo] * len(part)),
        )
        block = [Job() for _ in part]
        before = np.tile(_last(jobs, problem), (len(part), 1)) if start is None else start[low : low + size]
        simulation = Simulation(setup, block, varying, start=before)
        while simulation.advance(PATIENCE):
            on_round()
        jobs += block
    return _solved(run, jobs, regularizers, problem, tolerance)


def _last(jobs: list[Job], problem: Problem) -> Array:
    if not jobs:
        penalty = not problem.regularizer.constraint and hasattr(problem.regularizer, "strength")
        return null_model(problem) if penalty else problem.model.initial()
    assert jobs[-1].model is not None
    return jobs[-1].model


def _solved(run: Run, jobs: list[Job], regularizers: list[Regularizer], problem: Problem, tolerance: float) -> Solved:
    for job, psi in zip(jobs, regularizers, strict=True):
        if job.diverged is not None:
            what = " ".join(
                f"{key} {value:.3g}" for key, value in asdict(psi).items() if isinstance(value, int | float)
            )
            raise UserError(f"{run.algo.name} diverged at {psi.name} {what}: take a smaller client_lr, or auto")
    models, residuals = [job.model for job in jobs], [job.history["kkt_residual"][-1] for job in jobs]
    converged = [
        has_converged(problem, psi.numbers, tolerance, model, residual, job.certified)  # type: ignore[arg-type]
        for job, psi, model, residual in zip(jobs, regularizers, models, residuals, strict=True)
    ]
    relative_residuals = np.array(residuals) / problem.kkt_scale(stack_numbers(regularizers))
    rounds = np.array([job.round for job in jobs])
    return Solved(np.array(models, dtype=float), rounds, relative_residuals, np.array(converged))
