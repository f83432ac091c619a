"""Where stacks run: in processes on this machine, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fco_cli.errors import UserError, require
from fco_cli.files import write_atomically
from fco_cli.simulation.record import CHECKPOINT, Record
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.stacks import Ended, Event, Post, Stack, run_stack


@dataclass(frozen=True)
class Options:
    """The launcher's options (hydra.launcher)."""

    n_jobs: int | None
    memory_mb: int
    backend: str
    address: str | None

    def __post_init__(self) -> None:
        require(self.n_jobs is None or self.n_jobs >= 1, "hydra.launcher.n_jobs", self.n_jobs, "null or >= 1")
        require(self.memory_mb >= 1, "hydra.launcher.memory_mb", self.memory_mb, "a whole number >= 1")
        require(self.backend in BACKENDS, "hydra.launcher.backend", self.backend, " or ".join(BACKENDS))
        if self.backend == "dask":
            allowed = "the scheduler's address, tcp://host:port"
            require(self.address is not None, "hydra.launcher.address", self.address, allowed)


def on_this_machine(stacks: list[Stack], options: Options, stop: Stop, post: Post) -> Iterator[Ended]:
    """A process per stack, at most `n_jobs` at a time; the cores are shared out between them.

    A stack has signal handlers of its own and knows the sweep's by their file.
    """
    cores = os.cpu_count() or 1
    workers = min(options.n_jobs or cores, len(stacks))
    stacks = [_with_threads(stack, max(1, cores // max(workers, 1))) for stack in stacks]
    if workers <= 1:
        for stack in stacks:
            yield run_stack(stack, options.memory_mb, Stop(stop.flag), post)
        return
    from joblib import Parallel, delayed

    with _mailbox(post) as mailbox:
        tasks = (delayed(run_stack)(stack, options.memory_mb, Stop(stop.flag), mailbox) for stack in stacks)
        yield from Parallel(n_jobs=workers, backend="loky", batch_size=1, return_as="generator_unordered")(tasks)


def _with_threads(stack: Stack, threads: int) -> Stack:
    return Stack(stack.number, [replace(run, threads=run.threads or threads) for run in stack.runs])


@contextmanager
def _mailbox(post: Post) -> Iterator[Callable[[Event], None]]:
    """A way for other processes to post to this one."""
    with multiprocessing.Manager() as manager:
        letters: queue.Queue[Event | None] = manager.Queue()

        def read() -> None:
            for event in iter(letters.get, None):
                post(event)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield letters.put
        finally:
            letters.put(None)
            reader.join()


def on_dask(stacks: list[Stack], options: Options, stop: Stop, post: Post) -> Iterator[Ended]:
    """Stacks as tasks of an existing Dask cluster; the records come back and are written here.

    Workers need no common file system. A stack whose worker dies is given to another, from its last checkpoint here.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UserError(
            "hydra.launcher.backend: dask needs the extra fco-cli[dask]: pip install 'fco-cli[dask]'"
        ) from None
    try:
        client = Client(options.address, timeout="10s")
    except (OSError, ValueError) as problem:
        raise UserError(f"hydra.launcher.address: no scheduler at {options.address}: {problem}") from problem
    with client:
        tasks = {
            client.submit(
                run_on_worker, _with_threads(stack, 1), _checkpoints(stack), options.memory_mb, pure=False
            ): stack
            for stack in stacks
        }
        for stack in stacks:
            post(Event(stack.number, "round", running=len(stack.runs)))
        for future in as_completed(tasks):
            if stop.requested:
                client.cancel(list(tasks))
                return
            stack = tasks[future]
            ended, files = future.result()
            for run in stack.runs:
                _write_record(run.folder, files[run.run_id])
            for result in ended.results.values():
                post(Event(stack.number, result["status"]))
            for reason in ended.failures.values():
                post(Event(stack.number, "failed", text=f"failed: {reason}"))
            for _ in ended.refusals:
                post(Event(stack.number, "failed"))
            yield ended


Files = dict[str, bytes]
SENDABLE = 2**28  # bytes of a checkpoint


def run_on_worker(stack: Stack, checkpoints: dict[str, Files], memory_mb: int) -> tuple[Ended, dict[str, Files]]:
    """What a Dask worker does: run the stack in a folder of its own and send the records' files."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [replace(run, output_dir=Path(folder), force=False) for run in stack.runs]
        for run in runs:
            run.folder.mkdir(parents=True)
            for name, content in checkpoints[run.run_id].items():
                (run.folder / name).write_bytes(content)
        ended = run_stack(Stack(stack.number, runs), memory_mb, Stop(), lambda event: None)
        files = {
            run.run_id: {path.name: path.read_bytes() for path in run.folder.iterdir() if not path.name.startswith(".")}
            for run in runs
        }
        return ended, files


def _checkpoints(stack: Stack) -> dict[str, Files]:
    """The files from which each run goes on; clients' memory too large to send makes the run start over."""
    found: dict[str, Files] = {}
    for run in stack.runs:
        paths = [path for name in CHECKPOINT if (path := run.folder / name).exists()]
        small = sum(path.stat().st_size for path in paths) <= SENDABLE
        found[run.run_id] = {path.name: path.read_bytes() for path in paths} if small else {}
    return found


def _write_record(folder: Path, files: Files) -> None:
    """`result.json` last, as ever."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=lambda name: name == "result.json"):
        write_atomically(folder / name, files[name])
    if "result.json" in files:
        Record(folder).drop_checkpoint()


BACKENDS = {"local": on_this_machine, "dask": on_dask}
