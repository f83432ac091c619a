"""Construction of problems, learning rates and simulation setups from runs.

`Run` is the interface of a run that the simulation requires; `fco_cli.config.Run` implements it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fco_cli.algorithms import Algorithm, Varying
from fco_cli.algorithms.arrays import slot_count
from fco_cli.algorithms.round import FederatedRound
from fco_cli.algorithms.touched import has_touched_messages
from fco_cli.client_rate import relative
from fco_cli.memory_limit import require_memory
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.layout import Array, stack_numbers
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.problem import Problem, TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.clients import Clients, LocalClients
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.jobs import Setup
from fco_cli.simulation.memory import bytes_of_job
from fco_cli.simulation.smoothness import (
    automatic_rate,
    automatic_rate_of_mean,
    estimate_smoothness,
    smoothness_of_mean,
)
from fco_cli.simulation.systems.network import Network
from fco_cli.tasks import Task


class Run(Protocol):
    """Typed and validated settings of one run."""

    task: Task
    algo: Algorithm
    regularizer: Regularizer
    mirror: Mirror
    hparams: Hparams
    seed: int
    force: bool
    record_clients: bool
    record_path: bool
    threads: int | None

    @property
    def pause_at(self) -> int | None:
        """Round, before the last, after which the run pauses with a checkpoint; None: run to the end."""

    @property
    def method(self) -> Algorithm:
        """The algorithm with the transform of its messages."""

    @property
    def plugins(self) -> list[str]:
        """Files and modules that were loaded for this run."""

    @property
    def network(self) -> Network:
        """The simulated network of a federated algorithm."""

    @property
    def is_remote(self) -> bool:
        """True if the clients are at remote sites."""

    @property
    def has_noise(self) -> bool:
        """True if evaluations have noise."""

    @property
    def digests(self) -> dict[str, str]:
        """Identity of the run: digests of its data, its code and more, by name."""

    @property
    def run_id(self) -> str:
        """Digest of everything that the result depends on."""

    @property
    def folder(self) -> Path:
        """Folder of the record."""

    @property
    def yaml(self) -> str:
        """The resolved configuration."""

    def describe(self) -> str:
        """Return a summary in one line."""

    def check_code(self) -> None:
        """Raise UserError if this process has other code than the process that computed the digests."""

    def check_clients(self, available: int) -> None:
        """Raise UserError if a round samples more clients than available or fewer than the algorithm needs."""

    def check_batches(self, sizes: Array, needs_full_batch: bool) -> None:
        """Raise UserError if batches are too small or too large."""

    def check_metrics(self, metrics: Collection[str]) -> None:
        """Raise UserError if the run's experiment refers to a metric that the run does not compute."""


class _Keyed:
    """Cache key: a run that equals every other run with the same key."""

    def __init__(self, run: Run, key: str) -> None:
        self.run, self.key = run, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=1)  # consecutive stacks mostly share their data
def _data(keyed: _Keyed) -> TaskData:
    return keyed.run.task.data(keyed.run.seed, keyed.run.hparams.dtype)


@functools.lru_cache(maxsize=1)
def _problem(keyed: _Keyed) -> Problem:
    run = keyed.run
    return _data(_Keyed(run, run.digests["data"])).to_problem(run.regularizer, run.mirror, run.hparams.weighting)


def problem_of(run: Run) -> Problem:
    """Return the problem of a run, cached; it does not depend on the regularizer's numbers, which vary in a stack."""
    kind = (run.regularizer.kind, run.mirror, run.hparams.weighting)
    return _problem(_Keyed(run, f"{run.digests['data']} {kind}"))


def checked_problem_of(run: Run) -> Problem:
    """Return `problem_of` the run; raise UserError if its clients or batches do not match the run's settings."""
    problem = problem_of(run)
    run.check_clients(problem.data.clients)
    run.check_batches(problem.data.sizes, problem.loss.client_loss is not None or problem.model.site_bias)
    if run.algo.federated and not run.is_remote:
        key = f"hparams.clients_per_round={run.hparams.clients_per_round}"
        clients, weights = run.hparams.sampled(problem.data.clients), problem.layout.size
        require_memory(f"{key}: a round of {clients:,} clients and {weights:,} weights", bytes_per_job(run, problem))
    return problem


def bytes_per_job(run: Run, problem: Problem) -> int:
    """Return the bytes that a job adds to its stack: states, temporaries, messages and client memory."""
    size, itemsize, clients = problem.layout.size, problem.dtype.itemsize, problem.data.clients
    method, sampled = run.method, run.hparams.sampled(clients)
    if (
        isinstance(method, FederatedRound)
        and run.hparams.fraction_bits is None
        and has_touched_messages(method, problem)
    ):
        sampled = 1  # the messages of a group of clients are of bounded size
    return method.peak_vectors(sampled, clients, size) * size * itemsize + bytes_of_job(
        clients, slot_count(method.client_arrays, size), size, itemsize
    )


@functools.lru_cache(maxsize=1)
def _automatic_rate(keyed: _Keyed) -> float:
    return automatic_rate_for(keyed.run, problem_of(keyed.run))


def automatic_rate_for(run: Run, problem: Problem) -> float:
    """Return 1/L of a problem, with the L of F or of batches as the run's algorithm requires."""
    if run.algo.uses_mean_gradient:
        return automatic_rate_of_mean(problem, run.seed)
    return automatic_rate(problem, run.seed, _batch_size(run) or int(problem.data.sizes.max()))


def smoothness_for(run: Run, problem: Problem) -> float | None:
    """Return an estimate of the L that limits client_lr in the run's algorithm; None if it is unknown.

    L is that of F for steps along its gradient, otherwise the largest over the batches of the clients.
    """
    if not run.algo.federated or "client_lr" not in run.algo.uses or run.has_noise:
        return None  # sites would disclose their L without noise
    if not run.algo.uses_mean_gradient:
        if isinstance(problem.data, RemoteRows) and problem.data.why_no_hessian(problem.layout.size) is not None:
            return None  # the policy of a site forbids it
        rows = run.hparams.batch_size if "batch_size" in run.algo.uses else int(problem.data.sizes.max())
        smoothness = estimate_smoothness(problem, run.seed, rows)
    elif isinstance(problem.data, RemoteRows):  # would cost one message per site and iteration
        return None
    else:
        smoothness = smoothness_of_mean(problem, run.seed)
    return smoothness if 0 < smoothness < np.inf else None


def _batch_size(run: Run) -> int:
    """Return the batch size; 0 for a method that uses all rows in every step."""
    if not run.algo.federated:
        return run.algo.pooled_batch
    return run.hparams.batch_size if "batch_size" in run.algo.uses else 0


def client_lr_of(run: Run) -> float:
    """Return eta_c as a number; a multiple of 1/L is evaluated on the run's problem."""
    rate = run.hparams.client_lr
    if (times := relative(rate)) is None:
        return float(rate)
    if "client_lr" not in run.algo.uses:
        return 1.0
    kind = (run.mirror.name, run.algo.uses_mean_gradient, run.hparams.weighting, _batch_size(run))
    return times * _automatic_rate(_Keyed(run, f"{run.digests['data']} {kind}"))


def setup_of(run: Run, problem: Problem) -> Setup:
    """Return the setup shared by all runs of the run's stack."""
    record, clients = (run.record_clients, run.record_path), clients_factory(problem, run.hparams, run.seed)
    if not isinstance(problem.data, RemoteRows):
        clients = run.network.clients
    return Setup(run.task, problem, run.hparams, run.seed, run.method, *record, clients, run.network)


def clients_factory(problem: Problem, hparams: Hparams, seed: int) -> Callable[..., Clients]:
    """Return the factory of the problem's clients, in this process or at remote sites."""
    return problem.data.clients_factory(hparams, seed) if isinstance(problem.data, RemoteRows) else LocalClients


def varying_of(runs: Sequence[Run]) -> Varying:
    """Return the settings that differ within a stack, as vectors over the job axis."""
    dtype = runs[0].hparams.dtype
    return Varying(
        np.array([client_lr_of(run) for run in runs], dtype),
        np.array([run.hparams.server_lr for run in runs], dtype),
        stack_numbers(run.regularizer for run in runs),
        stack_numbers(run.algo for run in runs),
        stack_numbers(run.method.transform for run in runs),
    )
