"""Slices: the work of a Dask worker on a stack for a few seconds, and its result."""

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
from fco_cli.simulation.process import Stop, software
from fco_cli.simulation.record import CHECKPOINT
from fco_cli.sweeps.stacks import Event, Stack, StackResult, run_stack

SLICE_SECONDS = 5.0
MAX_TRANSFER_BYTES = 2**28  # of a stack's checkpoints; a stack with larger ones stays on its worker until it is done

Files = dict[str, bytes]
_stack_lock = threading.Lock()  # a process runs one stack at a time, with all threads of its worker


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


def run_slice(stack: Stack, checkpoints: dict[str, Files], memory_mb: int, expected: dict[str, Any]) -> Slice:
    """Run the stack from its checkpoints in a temporary folder of this worker, for a slice or to its end."""
    from distributed import get_worker

    worker = get_worker()
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
