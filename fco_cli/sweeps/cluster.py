"""Stacks on an existing Dask cluster, a slice of a few seconds at a time.

A worker sends what it has after every slice: the records of runs that are done and the checkpoints of the others. They
are written here, and the stack goes out again from there. So a worker needs no disk in common with us, nothing is lost
with it but a slice, and it works no longer than a slice for someone who is gone.
"""

from __future__ import annotations

import copy
import logging
import socket
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fco_cli.config import Run
from fco_cli.errors import SweepFailed, UserError, install_extra, one_line
from fco_cli.files import write_atomically
from fco_cli.simulation.provenance import software
from fco_cli.simulation.record import CHECKPOINT, replace_folder
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.runner import record_of
from fco_cli.sweeps.slices import SENDABLE, SLICE_SECONDS, Files, Slice, run_slice
from fco_cli.sweeps.stacks import Ended, Event, Post, Stack, Working, failure_text, given_up

if TYPE_CHECKING:
    from distributed import Client, Future

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10
ANSWER_SECONDS = 0.5
LEAVE_SECONDS = 2 * SLICE_SECONDS  # after a request to stop; what has not come back by then is done again
PATHS = ("path", "data_dir")  # keys of tasks


def run_on_cluster(stacks: list[Stack], address: str, memory_mb: int, stop: Stop, post: Post) -> Working:
    """Run all stacks, as many at a time as there are workers."""
    with _connected(address) as client:
        yield from _Sweep(client, address, memory_mb, post).run(deque(stacks), stop)


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    key = "hydra.launcher.address"
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"hydra.launcher.backend: dask needs distributed: {install_extra('dask')}") from None
    try:
        place = urlsplit(address)
        if place.scheme not in ("tcp", "tls") or not place.hostname or not place.port:
            raise ValueError("must be tcp://host:port or tls://host:port")
        socket.create_connection((place.hostname, place.port), CONNECT_SECONDS).close()  # Dask's own failure is slow
    except (OSError, ValueError) as problem:
        raise UserError(f"{key}: no scheduler at {address}: {one_line(problem)}") from problem
    _silence()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other versions, which matter to us: slices.py says it in one line
            client = Client(address, timeout=CONNECT_SECONDS)
    except Exception as problem:  # whatever answers there: no certificate, another protocol, a web server
        raise UserError(f"{key}: no Dask scheduler answers at {address}: {one_line(problem)}") from problem
    try:
        yield client
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.close(timeout=1)


def _silence() -> None:
    """What Dask logs when processes die, a traceback each, is said here in a line."""
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] in ("distributed", "tornado")]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _Sweep:
    """The stacks that are out at workers, and how they go out and come back."""

    def __init__(self, client: Client, address: str, memory_mb: int, post: Post) -> None:
        self.client, self.address, self.memory_mb, self.post = client, address, memory_mb, post
        self.out: dict[Future, Stack] = {}
        self.started: set[int] = set()
        self.alone = False

    def run(self, waiting: deque[Stack], stop: Stop) -> Iterator[Ended]:
        while waiting or self.out:
            if stop.requested:
                yield from self._leave()
                return
            for _ in range(min(len(waiting), self._workers() - len(self.out))):
                self._send(waiting.popleft())
            for future in self._arrived():
                stack = self.out.pop(future)
                ended, left = self._land(future, stack)
                yield ended
                if left:
                    waiting.appendleft(Stack(stack.number, left))

    def _leave(self) -> Iterator[Ended]:
        end = time.monotonic() + LEAVE_SECONDS
        while self.out and time.monotonic() < end:
            for future in self._arrived():
                yield self._land(future, self.out.pop(future))[0]

    def _workers(self) -> int:
        try:
            count = len(self.client.nthreads())
        except OSError as problem:
            raise self._gone() from problem
        if not count and not self.alone:
            log.warning("no workers at %s: waiting for one", self.address)
        self.alone = not count
        return count

    def _gone(self) -> SweepFailed:
        return SweepFailed(f"the scheduler at {self.address} is gone; the same command continues from what is saved")

    def _send(self, stack: Stack) -> None:
        runs = [_with_absolute_paths(run) for run in stack.runs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # checkpoints are large
            # To whichever worker is free, mostly the one that has just had this stack and still has its data.
            future = self.client.submit(
                run_slice, Stack(stack.number, runs), _checkpoints(stack), self.memory_mb, software(), pure=False
            )
        self.out[future] = stack
        if stack.number not in self.started:
            self.started.add(stack.number)
            self.post(Event(stack.number, "round", running=len(stack.runs)))

    def _arrived(self) -> list[Future]:
        from distributed import wait

        if not self.out:
            time.sleep(ANSWER_SECONDS)
            return []
        try:
            return list(wait(list(self.out), ANSWER_SECONDS, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            return []
        except (CancelledError, OSError) as problem:  # of all that is out
            raise self._gone() from problem

    def _land(self, future: Future, stack: Stack) -> tuple[Ended, list[Run]]:
        """Write what has come; the runs that have not ended yet go out again."""
        from distributed import KilledWorker

        try:
            slice_: Slice = future.result(timeout=LEAVE_SECONDS)
        except UserError:  # the worker refuses
            raise
        except KilledWorker as problem:
            deaths = problem.allowed_failures + 1
            return given_up(stack, f"{deaths} workers died of it: was their memory too small?", self.post), []
        except TimeoutError:  # the worker has died with it
            return Ended(), stack.runs
        except (CancelledError, OSError) as problem:
            raise self._gone() from problem
        except Exception as problem:
            reason = f"{type(problem).__name__}: {one_line(problem)}"
            raise UserError(f"hydra.launcher.address: a worker cannot do this, is it like us? {reason}") from problem
        finally:
            future.release()  # else Dask would compute it again where its worker dies
        ended = slice_.ended
        for run in stack.runs:
            _write(run, slice_.files[run.run_id])
            if run.run_id in ended.failures:
                text = failure_text(run, ended.failures[run.run_id])
                self.post(Event(stack.number, "failed", text=text))
        for event in slice_.events:
            if event.kind != "failed" or not event.text:
                self.post(event)
        done = {**ended.results, **ended.failures, **ended.refusals}
        return ended, [run for run in stack.runs if run.run_id not in done]


def _with_absolute_paths(run: Run) -> Run:
    """A worker has another folder than we; the run's identity, which knows no paths, stays as it is."""
    sent = copy.copy(run)
    named = {key: path for key in PATHS if (path := getattr(run.task, key, None)) is not None}
    sent.task = replace(run.task, **{key: str(Path(path).absolute()) for key, path in named.items()})  # type: ignore[arg-type]
    return sent


def _checkpoints(stack: Stack) -> dict[str, Files]:
    """The files from which each run goes on; together too large to be sent, they stay, and the stack starts over."""
    paths = {run.run_id: [record_of(run).folder / name for name in CHECKPOINT] for run in stack.runs}
    paths = {run_id: [path for path in found if path.exists()] for run_id, found in paths.items()}
    size = sum(path.stat().st_size for found in paths.values() for path in found)
    return {
        run_id: {path.name: path.read_bytes() for path in found} if size <= SENDABLE else {}
        for run_id, found in paths.items()
    }


def _write(run: Run, files: Files) -> None:
    """`result.json` last, as ever; a checkpoint is left to another process that is at work on the same run."""
    record = record_of(run)
    with record.lock(wait=False) as ours:
        done = "result.json" in files
        if not (ours or done) or (not run.force and record.result()):
            return
        path = record.folder / "run.log"
        files["run.log"] = (path.read_bytes() if path.exists() else b"") + files.get("run.log", b"")
        for name in sorted(files, key=lambda name: name == "result.json"):
            write_atomically(record.folder / name, files[name], flush=done)
        if done:
            record.drop_checkpoint()
            if run.force:
                replace_folder(run.folder, record.folder)
