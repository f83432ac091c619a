"""Execution of stacks on an existing Dask cluster, in slices of a few seconds.

After every slice a worker returns the records of finished runs and the checkpoints of the others. This process writes
them and submits the stack again from there. A worker therefore needs no shared disk, at most one slice is lost if it
dies, and it stops after one slice if this process has ended.
"""

from __future__ import annotations

import copy
import logging
import pickle
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fco_cli.config import Run
from fco_cli.errors import SweepFailed, UserError, install_extra, one_line
from fco_cli.files import write_atomically
from fco_cli.simulation.execute import record_of
from fco_cli.simulation.process import Stop, software
from fco_cli.simulation.record import CHECKPOINT, replace_folder
from fco_cli.sweeps.stacks import Event, Post, ResultStream, Stack, StackResult, abandon_stack, failure_text, run_stack

if TYPE_CHECKING:
    from distributed import Client, Future

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10
POLL_SECONDS = 0.5
SLICE_SECONDS = 5.0
DRAIN_SECONDS = 2 * SLICE_SECONDS  # after a request to stop; slices that return later are discarded
PATHS = ("path", "data_dir")  # keys of tasks that are paths
MAX_TRANSFER_BYTES = 2**28  # of a stack's checkpoints; a stack with larger ones stays on its worker until it is done

Files = dict[str, bytes]
_stack_lock = threading.Lock()  # a process runs one stack at a time, with all threads of its worker


def run_on_cluster(stacks: list[Stack], address: str, memory_mb: int, stop: Stop, post: Post) -> ResultStream:
    """Run all stacks, one per worker at a time."""
    with _connect(address) as client:
        yield from _ClusterSweep(client, address, memory_mb, post).run(deque(stacks), stop)


@contextmanager
def _connect(address: str) -> Iterator[Client]:
    key = "hydra.launcher.address"
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"hydra.launcher.backend: dask needs distributed: {install_extra('dask')}") from None
    try:
        url = urlsplit(address)
        if url.scheme not in ("tcp", "tls") or not url.hostname or not url.port:
            raise ValueError("must be tcp://host:port or tls://host:port")
        socket.create_connection((url.hostname, url.port), CONNECT_SECONDS).close()  # fails faster than Dask
    except (OSError, ValueError) as problem:
        raise UserError(f"{key}: no scheduler at {address}: {one_line(problem)}") from problem
    _silence_dask()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # _check compares the versions
            client = Client(address, timeout=CONNECT_SECONDS)
    except Exception as problem:  # a missing certificate, another protocol, a web server
        raise UserError(f"{key}: no Dask scheduler answers at {address}: {one_line(problem)}") from problem
    try:
        yield client
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.close(timeout=1)


def _silence_dask() -> None:
    """Turn off the tracebacks that Dask logs for dead processes; they are reported here in one line."""
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado")]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _ClusterSweep:
    """Stacks submitted to the workers of a cluster."""

    def __init__(self, client: Client, address: str, memory_mb: int, post: Post) -> None:
        self.client, self.address, self.memory_mb, self.post = client, address, memory_mb, post
        self.pending: dict[Future, Stack] = {}
        self.started: set[int] = set()
        self.is_idle = False  # the cluster has no workers

    def run(self, waiting: deque[Stack], stop: Stop) -> Iterator[StackResult]:
        while waiting or self.pending:
            if stop.requested:
                yield from self._drain()
                return
            for _ in range(min(len(waiting), self._count_workers() - len(self.pending))):
                self._submit(waiting.popleft())
            for future in self._completed():
                stack = self.pending.pop(future)
                result, remaining = self._receive(future, stack)
                yield result
                if remaining:
                    waiting.appendleft(Stack(stack.number, remaining))

    def _drain(self) -> Iterator[StackResult]:
        end = time.monotonic() + DRAIN_SECONDS
        while self.pending and time.monotonic() < end:
            for future in self._completed():
                yield self._receive(future, self.pending.pop(future))[0]

    def _count_workers(self) -> int:
        try:
            count = len(self.client.nthreads())
        except OSError as problem:
            raise self._connection_lost() from problem
        if not count and not self.is_idle:
            log.warning("no workers at %s: waiting for one", self.address)
        self.is_idle = not count
        return count

    def _connection_lost(self) -> SweepFailed:
        return SweepFailed(
            f"lost the connection to the scheduler at {self.address}; run the same command again to continue"
        )

    def _submit(self, stack: Stack) -> None:
        runs = [_with_absolute_paths(run) for run in stack.runs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # checkpoints are large
            # Any free worker will do; it is usually the one that ran the last slice and still has the data.
            future = self.client.submit(
                run_slice,
                pickle.dumps(Stack(stack.number, runs)),  # read by the worker alone: the scheduler needs no plug-ins
                _checkpoints(stack),
                self.memory_mb,
                software(),
                pure=False,
            )
        self.pending[future] = stack
        if stack.number not in self.started:
            self.started.add(stack.number)
            self.post(Event(stack.number, "round", running=len(stack.runs)))

    def _completed(self) -> list[Future]:
        from distributed import wait

        if not self.pending:
            time.sleep(POLL_SECONDS)
            return []
        try:
            return list(wait(list(self.pending), POLL_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []
        except (CancelledError, OSError) as problem:  # Dask cancels all pending tasks
            raise self._connection_lost() from problem

    def _receive(self, future: Future, stack: Stack) -> tuple[StackResult, list[Run]]:
        """Write the files of a slice; return its result and the runs that have not ended yet."""
        from distributed import KilledWorker

        try:
            slice_: Slice = future.result(timeout=DRAIN_SECONDS)
        except UserError:  # raised on the worker
            raise
        except KilledWorker as problem:
            deaths = problem.allowed_failures + 1
            return abandon_stack(stack, f"{deaths} workers died; they may need more memory", self.post), []
        except TimeoutError:  # the worker died with the result
            return StackResult(), stack.runs
        except (CancelledError, OSError) as problem:
            raise self._connection_lost() from problem
        except Exception as problem:
            raise UserError(
                "hydra.launcher.address: a worker or the scheduler failed; check that both have the same software: "
                + _cause(problem)
            ) from problem
        finally:
            future.release()  # otherwise Dask computes it again if its worker dies
        result = slice_.result
        for run in stack.runs:
            _write(run, slice_.files[run.run_id])
            if run.run_id in result.failures:
                text = failure_text(run, result.failures[run.run_id])
                self.post(Event(stack.number, "failed", text=text))
        for event in slice_.events:
            if event.kind != "failed" or not event.text:
                self.post(event)
        done = {**result.results, **result.failures, **result.refusals}
        return result, [run for run in stack.runs if run.run_id not in done]


def _cause(problem: BaseException) -> str:
    """Return the first cause of an exception in one line; Dask reports a missing package as a failed task graph."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return f"{type(problem).__name__}: {one_line(problem)}"


def _with_absolute_paths(run: Run) -> Run:
    """Return the run with absolute paths for a worker in another folder; its identity does not depend on paths."""
    sent = copy.copy(run)
    named = {key: path for key in PATHS if (path := getattr(run.task, key, None)) is not None}
    sent.task = replace(run.task, **{key: str(Path(path).absolute()) for key, path in named.items()})  # type: ignore[arg-type]
    return sent


def _checkpoints(stack: Stack) -> dict[str, Files]:
    """Return the checkpoint files of each run; none if they are too large to be sent, so that the stack starts over."""
    paths = {run.run_id: [record_of(run).folder / name for name in CHECKPOINT] for run in stack.runs}
    paths = {run_id: [path for path in names if path.exists()] for run_id, names in paths.items()}
    size = sum(path.stat().st_size for names in paths.values() for path in names)
    return {
        run_id: {path.name: path.read_bytes() for path in names} if size <= MAX_TRANSFER_BYTES else {}
        for run_id, names in paths.items()
    }


def _write(run: Run, files: Files) -> None:
    """Write the files of a run, `result.json` last; skip a checkpoint if another process has locked the run."""
    record = record_of(run)
    with record.lock(wait=False) as acquired:
        done = "result.json" in files
        if not (acquired or done) or (not run.force and record.result()):
            return
        path = record.folder / "run.log"
        files["run.log"] = (path.read_bytes() if path.exists() else b"") + files.get("run.log", b"")
        for name in sorted(files, key=lambda name: name == "result.json"):
            write_atomically(record.folder / name, files[name], flush=done)
        if done:
            record.drop_checkpoint()
            if run.force:
                replace_folder(run.folder, record.folder)


@dataclass
class Slice:
    """Result of a slice."""

    result: StackResult
    files: dict[str, Files]  # run id -> new files of the record
    events: list[Event]


class _Deadline(Stop):
    """Stop request after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    @property
    def requested(self) -> bool:
        if time.monotonic() > self.end:
            self.signal_number = signal.SIGTERM
        return self.signal_number is not None


def run_slice(pickled: bytes, checkpoints: dict[str, Files], memory_mb: int, expected: dict[str, Any]) -> Slice:
    """Run the stack from its checkpoints in a temporary folder of this worker, for a slice or to its end."""
    from distributed import get_worker

    worker = get_worker()
    stack = _unpickle(pickled, worker.address)
    _check(worker.address, stack.runs[0], expected)
    with _stack_lock, tempfile.TemporaryDirectory(dir=worker.local_directory) as folder:
        runs = [_relocate(run, Path(folder), worker.state.nthreads) for run in stack.runs]
        for run in runs:
            run.folder.mkdir(parents=True)
            for name, content in checkpoints[run.run_id].items():
                (run.folder / name).write_bytes(content)
        events: list[Event] = []
        local = Stack(stack.number, runs)
        result = run_stack(local, memory_mb, _Deadline(SLICE_SECONDS), events.append)
        if sum(_checkpoint_bytes(run) for run in runs) > MAX_TRANSFER_BYTES:
            result = run_stack(local, memory_mb, Stop(), events.append)
        return Slice(result, {run.run_id: _files(run) for run in runs}, events)


def _unpickle(pickled: bytes, worker: str) -> Stack:
    """Return the stack; raise UserError if this worker lacks a module or a plug-in of its runs."""
    where = f"the worker {worker} (host {socket.gethostname()})"
    try:
        return pickle.loads(pickled)
    except ImportError as problem:
        name = problem.name or one_line(problem)
        raise UserError(f"hydra.launcher.address: {where} lacks the module {name}; install it there") from None
    except UserError as problem:
        raise UserError(f"{problem}, on {where}; plug-ins must be at the same path there, or installed") from None
    except AttributeError as problem:
        raise UserError(f"hydra.launcher.address: {where} has other code: {one_line(problem)}") from None


def _relocate(run: Run, folder: Path, threads: int) -> Run:
    relocated = copy.copy(run)  # keeps the identity computed by the sweep's process
    relocated.output_dir, relocated.force, relocated.threads = folder, False, run.threads or threads
    return relocated


def _checkpoint_bytes(run: Run) -> int:
    return sum(path.stat().st_size for name in CHECKPOINT if (path := run.folder / name).exists())


def _files(run: Run) -> Files:
    return {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file() and path.name[0] != "."}


def _check(worker: str, run: Run, expected: dict[str, Any]) -> None:
    """Raise UserError if the worker's software, code or data differ from those of the sweep's process."""
    own, other = _flat(software()), _flat(expected)
    differing = [f"{name} {own.get(name)} instead of {other[name]}" for name in other if own.get(name) != other[name]]
    if differing:
        raise UserError(f"hydra.launcher.address: the worker {worker} has {', '.join(differing)}")
    fresh = copy.copy(run)
    fresh.__dict__.pop("identity", None)
    try:
        is_same = fresh.identity.stack == run.identity.stack
    except UserError as problem:
        raise UserError(f"{problem} on the worker {worker}") from None
    if not is_same:
        what = "data" if fresh.task.contents() else "code"
        raise UserError(f"task: the worker {worker} has other {what} for {run.task.name} than this machine")


def _flat(versions: dict[str, Any]) -> dict[str, Any]:
    return {**versions["versions"], "Python": versions["python"], "revision": versions["git_revision"]}
