"""Backends that run stacks: worker processes on this machine, or a Dask cluster.

A worker process receives stacks, a run to prepare for, or the number of a stop signal through a pipe, and sends events
and the results of stacks. It ends when the pipe is closed, however the sweep's process ended. A stack whose worker died
continues from its last checkpoint.
"""

from __future__ import annotations

import copy
import io
import logging
import os
import pickle
import queue
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import set_start_method
from multiprocessing.connection import Connection, Pipe, wait
from types import FunctionType
from typing import Any

from fco_cli.config import Run
from fco_cli.errors import one_line, require
from fco_cli.simulation.process import SIGNALS, Stop
from fco_cli.simulation.record import Record
from fco_cli.sweeps.cluster import run_on_cluster
from fco_cli.sweeps.stacks import Event, Post, ResultStream, Stack, StackResult, abandon_stack, prepare, run_stack
from fco_cli.sweeps.starting import has_fork_server, kill_process, start_process

log = logging.getLogger(__name__)

RETRIES = 2  # of a stack whose process died, each from its last checkpoint
POLL_SECONDS = 0.2  # between checks for a request to stop
PER_CORE = 8  # largest number of processes per core; more would only use more memory
LARGEST_MEMORY = 2**30  # MB


def prepare_worker(run: Run) -> None:
    """Start a worker that builds the data of a run, while the sweep is still being composed."""
    _prepared.append(_Worker())
    _prepared[-1].send(run)


def count_prepared_workers() -> int:
    """Return the number of workers started by `prepare_worker` and not used yet."""
    return len(_prepared)


def run_in_processes(stacks: list[Stack], workers: int, memory_mb: int, stop: Stop, post: Post) -> ResultStream:
    """Run all stacks, `workers` at a time."""
    waiting, deaths = deque(stacks), Counter[int]()
    pool = [_prepared.pop(0) if _prepared else _Worker() for _ in range(workers)]
    results: list[StackResult] = []
    try:
        while True:
            if stop.requested:
                waiting.clear()
                for worker in pool:
                    worker.send(stop.signal_number)
            for worker in pool:
                if waiting and worker.stack is None:
                    worker.stack = waiting.popleft()
                    worker.send((worker.stack, memory_mb))
            yield from results  # after the workers have their next stack, since the caller takes time
            results.clear()
            busy = {worker.pipe: worker for worker in pool if worker.stack is not None}
            if not busy:
                return
            for pipe in wait(list(busy), POLL_SECONDS):
                worker = busy[pipe]  # type: ignore[index]
                message = worker.receive()
                if isinstance(message, Event):
                    post(message)
                    continue
                stack, worker.stack = worker.stack, None
                assert stack is not None
                if isinstance(message, StackResult):
                    results.append(message)
                    continue
                pool[pool.index(worker)] = _Worker()
                deaths[stack.number] += 1
                if deaths[stack.number] <= RETRIES:
                    waiting.append(stack)
                else:
                    reason = f"its process died {RETRIES + 1} times, {worker.exit_reason()}"
                    results.append(abandon_stack(stack, reason, post))
    finally:
        for worker in pool:
            if has_fork_server() and worker.stack is None:
                _prepared.append(worker)  # for the next stacks of this command, with its data and kernels
            else:
                kill_process(worker.process)


_Requests = queue.SimpleQueue[tuple[Stack, int] | Run]


class _Worker:
    """The sweep's end of a worker process."""

    def __init__(self) -> None:
        self.pipe, remote = Pipe()
        self.process = start_process(work, remote)
        remote.close()
        self.stack: Stack | None = None  # the stack that it runs
        self.problem = ""  # why it could not read a request

    def send(self, message: Any) -> None:
        with suppress(OSError):  # a dead worker is detected by `receive`
            self.pipe.send(message)

    def receive(self) -> Event | StackResult | None:
        """Return the worker's next message; None if it has died, or ends because it could not read a request."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, str):
            self.problem = message
            return None
        return message

    def exit_reason(self) -> str:
        """Wait for the end of the process and return how it ended."""
        self.process.join()
        if self.problem:
            return f"because it cannot load the runs: {self.problem}"
        code = self.process.exitcode or 0
        was_killed = code == -getattr(signal, "SIGKILL", 9)
        return "killed: it may need more memory" if was_killed else f"with exit code {code}"


_prepared: list[_Worker] = []  # workers without a stack yet


def work(pipe: Connection) -> None:
    """Execute the requests from a pipe until it is closed."""
    for number in SIGNALS:  # a terminal sends them to all processes; the sweep's process forwards them
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    set_start_method("spawn", force=True)  # otherwise Numba creates a semaphore that leaks when the process is killed
    stop, requests = Stop(), _Requests()
    threading.Thread(target=_receive_requests, args=(pipe, requests, stop), daemon=True).start()

    def send(message: Event | StackResult) -> None:
        try:
            pipe.send(message)
        except OSError:
            os._exit(1)

    preparation = StackResult()
    while True:
        request = requests.get()
        if isinstance(request, Run):
            preparation = prepare(request)
        else:
            stack, memory_mb = request
            result = run_stack(stack, memory_mb, stop, send)
            result.add(preparation)
            preparation = StackResult()
            send(result)


def _receive_requests(pipe: Connection, requests: _Requests, stop: Stop) -> None:
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):  # the sweep's process has ended; checkpoints are on disk
            os._exit(1)
        except Exception as problem:  # a class or a plug-in that this process cannot load
            with suppress(OSError):
                pipe.send(f"{type(problem).__name__}: {one_line(problem)}")
            os._exit(1)
        if isinstance(message, int):
            stop.signal_number = message
        else:
            requests.put(message)


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
    elif not is_in_process and (name := session_object(stacks)):
        workers, is_in_process = 1, True
        log.info("running in this process: %s is defined in this session; a file can be run in several", name)
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


def session_object(stacks: Iterable[Stack]) -> str:
    """Return a class or function of the runs that other processes cannot import; "" if there is none."""
    for stack in stacks:
        first = stack.runs[0]  # the runs of a stack differ in numbers only
        if name := first.task.model.session_object() or _ClassFinder().find(first):
            return name
    return ""


class _ClassFinder(pickle.Pickler):
    """Pickler that searches an object for a class or function of the main script or of a function's body."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.name = ""

    def find(self, item: Any) -> str:
        """Return the name of the first such class or function; "" if there is none."""
        try:
            self.dump(item)
        except (pickle.PicklingError, AttributeError, TypeError):
            return self.name or type(item).__name__
        return self.name

    def persistent_id(self, item: Any) -> None:
        """Note a class or function that other processes cannot import; everything is pickled by value."""
        if isinstance(item, type | FunctionType):
            is_local = item.__module__ == "__main__" or "<locals>" in item.__qualname__
            self.name = self.name or (item.__qualname__ if is_local else "")


def _with_threads(stack: Stack, threads: int) -> Stack:
    runs = [copy.copy(run) for run in stack.runs]  # keeps the cached identity, which takes time to compute
    for run in runs:
        run.threads = run.threads or threads
    return Stack(stack.number, runs)


def on_dask(stacks: list[Stack], options: Options, stop: Stop, post: Post) -> ResultStream:
    """Run the stacks as tasks of an existing Dask cluster."""
    assert options.address is not None
    require(not _is_remote(stacks), "hydra.launcher.backend", "dask", "local: the sites accept a single connection")
    name = session_object(stacks)
    allowed = f"local: {name} is defined in this session only; move it to a file"
    require(not name, "hydra.launcher.backend", "dask", allowed)
    yield from run_on_cluster(stacks, options.address, options.memory_mb, stop, post)


BACKENDS = {"local": on_this_machine, "dask": on_dask}
