"""A slice of work: what a Dask worker does with a stack for a few seconds, and what it sends back."""

from __future__ import annotations

import copy
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fco_cli.config import Run
from fco_cli.errors import UserError
from fco_cli.simulation.provenance import software
from fco_cli.simulation.record import CHECKPOINT
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.stacks import Ended, Event, Stack, run_stack

SLICE_SECONDS = 5.0
SENDABLE = 2**28  # bytes of a stack's checkpoints: one with larger ones stays where it runs until it is done

Files = dict[str, bytes]
_alone = threading.Lock()  # a process runs one stack at a time, with all the threads that its worker has


@dataclass
class Slice:
    """What comes back."""

    ended: Ended
    files: dict[str, Files]  # by run id: what is new in the records
    events: list[Event]


class _Deadline(Stop):
    """Asks to stop when the time is over."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.end = time.monotonic() + seconds

    @property
    def requested(self) -> bool:
        if time.monotonic() > self.end:
            self.signal_number = signal.SIGTERM
        return self.signal_number is not None


def run_slice(stack: Stack, checkpoints: dict[str, Files], memory_mb: int, expected: dict[str, Any]) -> Slice:
    """Run the stack from its checkpoints in a folder of this worker, for a while or to its end."""
    from distributed import get_worker

    worker = get_worker()
    _check(worker.address, stack.runs[0], expected)
    with _alone, tempfile.TemporaryDirectory(dir=worker.local_directory) as folder:
        runs = [_moved(run, Path(folder), worker.state.nthreads) for run in stack.runs]
        for run in runs:
            run.folder.mkdir(parents=True)
            for name, content in checkpoints[run.run_id].items():
                (run.folder / name).write_bytes(content)
        events: list[Event] = []
        here = Stack(stack.number, runs)
        ended = run_stack(here, memory_mb, _Deadline(SLICE_SECONDS), events.append)
        if sum(size_of_checkpoint(run) for run in runs) > SENDABLE:
            ended = run_stack(here, memory_mb, Stop(), events.append)
        return Slice(ended, {run.run_id: _files(run) for run in runs}, events)


def _moved(run: Run, folder: Path, threads: int) -> Run:
    moved = copy.copy(run)  # with the identity that it has where it comes from
    moved.output_dir, moved.force, moved.threads = folder, False, run.threads or threads
    return moved


def size_of_checkpoint(run: Run) -> int:
    return sum(path.stat().st_size for name in CHECKPOINT if (path := run.folder / name).exists())


def _files(run: Run) -> Files:
    return {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file() and path.name[0] != "."}


def _check(worker: str, run: Run, expected: dict[str, Any]) -> None:
    """A record must not depend on where it was made: the same software, the same data."""
    here, there = _flat(software()), _flat(expected)
    differing = [f"{name} {here.get(name)} instead of {there[name]}" for name in there if here.get(name) != there[name]]
    if differing:
        raise UserError(f"hydra.launcher.address: the worker {worker} has {', '.join(differing)}")
    fresh = copy.copy(run)
    fresh.__dict__.pop("identity", None)
    try:
        same = fresh.identity.stack == run.identity.stack
    except UserError as problem:
        raise UserError(f"{problem} on the worker {worker}") from None
    if not same:
        what = "data" if fresh.task.contents() else "code"
        raise UserError(f"task: the worker {worker} has other {what} for {run.task.name} than this machine")


def _flat(versions: dict[str, Any]) -> dict[str, Any]:
    return {**versions["versions"], "Python": versions["python"], "revision": versions["git_revision"]}
