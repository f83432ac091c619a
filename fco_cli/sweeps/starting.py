"""How a worker process starts: from nothing, or as a copy of one that loaded the code while the sweep was composed.

To load the code takes a process a second, as long as the sweep's own process takes to compose its jobs. How many
workers there will be is known only then; a process to copy (multiprocessing's fork server) is one for any number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from fco_cli.simulation.stop import SIGNALS

LOADED = ["fco_cli.sweeps.processes", "fco_cli.kernels.vector"]  # the latter with Numba
_method = "spawn"
_copies: list[BaseProcess] = []


@contextmanager
def loading_early() -> Iterator[None]:
    """Load the workers' code in a process of its own while the body runs; workers are then copies of it.

    For commands only: it keeps the environment that it finds, and a program that calls us may have another use for the
    one such process that Python allows. On Linux only: elsewhere a copy cannot use the system's linear algebra. It ends
    with the body, or when this process ends in whatever way.
    """
    global _method
    if sys.platform != "linux" or os.cpu_count() == 1:
        yield
        return
    from multiprocessing import forkserver, resource_tracker

    multiprocessing.set_forkserver_preload(LOADED)
    resource_tracker.ensure_running()  # by itself it would come later, and let signals through
    with _signals_wait(), _without_main(), _without_current_folder():
        forkserver.ensure_running()
    _method = "forkserver"
    try:
        yield
    finally:
        _method = "spawn"
        while _copies:
            end(_copies.pop())
        server: Any = forkserver._forkserver
        os.kill(server._forkserver_pid, signal.SIGKILL)  # it may still be loading, and whoever reads our output waits
        server._stop()


def started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process at work on `target`, which is not yet ready for signals."""
    context: Any = multiprocessing.get_context(_method)
    process: BaseProcess = context.Process(target=target, args=arguments, daemon=True)
    with _signals_wait(), _without_main():
        process.start()
    if early():
        _copies.append(process)
    return process


def end(process: BaseProcess) -> None:
    """At once: it ignores milder signals."""
    process.kill()
    process.join()


def early() -> bool:
    """Whether a worker can be started at next to no cost, also one that may turn out not to be needed."""
    return _method == "forkserver"


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals are held back, also in a process that starts in here, until it is ready for them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """A process that starts in here does not import the script that called for the sweep, which would call again."""
    theirs = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = theirs


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """A Python that starts in here does not take the files of the current folder for modules."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
