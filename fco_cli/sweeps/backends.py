"""Backends that run stacks: processes on this machine, or a Dask cluster."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass

from fco_cli.config import Run
from fco_cli.errors import require
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record
from fco_cli.sweeps.cluster import run_on_cluster
from fco_cli.sweeps.processes import count_prepared_workers, prepare_worker, run_in_processes
from fco_cli.sweeps.stacks import Post, ResultStream, Stack, run_stack
from fco_cli.sweeps.starting import has_fork_server

PER_CORE = 8  # largest number of processes per core; more would only use more memory
LARGEST_MEMORY = 2**30  # MB


@dataclass(frozen=True)
class Options:
    """Options of the launcher (hydra.launcher)."""

    n_jobs: int | None
    memory_mb: int
    backend: str
    address: str | None

    def __post_init__(self) -> None:
        most = PER_CORE * cores()
        allowed = f"null or a whole number from 1 to {most}, {PER_CORE} for every core"
        require(self.n_jobs is None or 1 <= self.n_jobs <= most, "hydra.launcher.n_jobs", self.n_jobs, allowed)
        allowed = f"a whole number from 1 to {LARGEST_MEMORY}"
        require(1 <= self.memory_mb <= LARGEST_MEMORY, "hydra.launcher.memory_mb", self.memory_mb, allowed)
        require(self.backend in BACKENDS, "hydra.launcher.backend", self.backend, " or ".join(BACKENDS))
        if self.backend == "dask":
            allowed = "the scheduler's address, tcp://host:port"
            require(self.address is not None, "hydra.launcher.address", self.address, allowed)


def cores() -> int:
    return os.cpu_count() or 1


def on_this_machine(stacks: list[Stack], options: Options, stop: Stop, post: Post) -> ResultStream:
    """Run the stacks in at most `n_jobs` processes, with the cores divided among them."""
    workers = max(1, min(options.n_jobs or cores(), len(stacks)))
    is_in_process = workers == 1 and not count_prepared_workers()
    if _is_remote(stacks):
        workers, is_in_process = 1, True  # there is a single connection to the sites
    stacks = [_with_threads(stack, max(1, cores() // workers)) for stack in stacks]
    if not is_in_process:
        yield from run_in_processes(stacks, workers, options.memory_mb, stop, post)
        return
    for stack in stacks:
        yield run_stack(stack, options.memory_mb, stop, post)


def expect(run: Run, options: Options) -> None:
    """Let a worker prepare for a run while the sweep is still being composed, if there is a fork server."""
    most = options.n_jobs or cores()
    is_local = has_fork_server() and options.backend == "local" and not run.federation.is_remote
    if is_local and count_prepared_workers() < most > 1 and (run.force or not Record(run.folder).result()):
        prepare_worker(run)


def _is_remote(stacks: list[Stack]) -> bool:
    return any(run.federation.is_remote for stack in stacks for run in stack.runs)


def _with_threads(stack: Stack, threads: int) -> Stack:
    runs = [copy.copy(run) for run in stack.runs]  # keeps the cached identity, which takes time to compute
    for run in runs:
        run.threads = run.threads or threads
    return Stack(stack.number, runs)


def on_dask(stacks: list[Stack], options: Options, stop: Stop, post: Post) -> ResultStream:
    """Run the stacks as tasks of an existing Dask cluster."""
    assert options.address is not None
    require(not _is_remote(stacks), "hydra.launcher.backend", "dask", "local: the sites accept a single connection")
    yield from run_on_cluster(stacks, options.address, options.memory_mb, stop, post)


BACKENDS = {"local": on_this_machine, "dask": on_dask}
