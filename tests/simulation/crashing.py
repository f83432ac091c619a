"""A run whose disk fails, or whose process is killed, at a chosen write. Also imported in separate processes.

Everything a run writes goes through `files.write_all` (the content), `os.fsync` and `Path.replace` (the name): they are
the moments that are counted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module

from fco_cli import files
from fco_cli.config import Run, register
from fco_cli.simulation import execute as execution
from fco_cli.simulation import memory
from fco_cli.simulation.process import Stop

TINY = [
    "task=lasso", "algo=scaffold", "regularizer=none", "task.dimension=12", "task.ones=4", "task.clients=5",
    "task.samples=8", "hparams.rounds=3", "hparams.clients_per_round=2", "record_clients=true",
]  # fmt: skip


class Quiet:
    """Observer that does nothing."""

    def on_start(self, *_: Any) -> None: ...

    def on_round(self, *_: Any) -> None: ...

    def on_outcome(self, *_: Any) -> None: ...


def run(folder: Path) -> Path:
    """Run a method with client memory in a file and a checkpoint after every round; return its record."""
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        one = Run.of(compose("config", overrides=[*TINY, f"output_dir={folder}"]))
    usual = execution.CHECKPOINT_SECONDS, memory.LARGE
    execution.CHECKPOINT_SECONDS, memory.LARGE = -1.0, 0
    try:
        execution.execute([one], Quiet(), Stop())
    finally:
        execution.CHECKPOINT_SECONDS, memory.LARGE = usual
    return one.folder


@contextmanager
def watched(moment: Callable[[str], None]) -> Iterator[None]:
    """Call `moment` before and after every operation that changes the disk."""
    write_all, replace, fsync = files.write_all, Path.replace, os.fsync

    def watched_write(file: Any, content: bytes) -> None:
        moment("write")
        write_all(file, content)

    def watched_replace(path: Path, target: Path) -> Path:
        moment("before the rename")
        new = replace(path, target)
        moment("after the rename")
        return new

    def watched_fsync(handle: int) -> None:
        moment("flush")
        fsync(handle)

    places = [
        (files, "write_all", watched_write),
        (memory, "write_all", watched_write),
        (Path, "replace", watched_replace),
    ]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    try:
        for place, name, new in places:
            setattr(place, name, new)
        os.fsync = watched_fsync  # type: ignore[assignment]
        yield
    finally:
        for place, name, old in before:
            setattr(place, name, old)
        os.fsync = fsync


class At:
    """Callback that calls `do` at the n-th moment of a kind, and counts the moments."""

    def __init__(self, kind: str, n: int, do: Callable[[], None]) -> None:
        self.kind, self.n, self.do, self.seen = kind, n, do, 0

    def __call__(self, kind: str) -> None:
        if kind == self.kind:
            self.seen += 1
            if self.seen == self.n:
                self.do()


def fail(code: int) -> Callable[[], None]:
    def do() -> None:
        raise OSError(code, os.strerror(code))

    return do


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "killed":  # in a process that ends here
    folder, kind, n = CHOSEN_END  # type: ignore[name-defined]  # noqa: F821 - given to the process
    with watched(At(kind, n, die)):
        run(folder)
