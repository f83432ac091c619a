"""Start of worker processes, by spawning or as copies of a fork server.

Loading the code takes about one second per process, as long as composing the jobs of a sweep. The fork server
(multiprocessing) loads the code while the sweep is composed; workers are then copies of it.
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

from fco_cli.simulation.process import SIGNALS

PRELOADED = ["fco_cli.sweeps.backends", "fco_cli.kernels.vector"]  # the latter imports Numba
_method = "spawn"
_copies: list[BaseProcess] = []


@contextmanager
def preload_workers() -> Iterator[None]:
    """Run a fork server with the workers' code while the body runs, and start workers as copies of it.

    Only for commands: the server keeps its initial environment, and a calling program may need the single fork server
    of the process itself. Only on Linux: on other systems a forked process cannot use the system's linear algebra. The
    server ends with the body or with this process.
    """
    global _method
    if sys.platform != "linux" or os.cpu_count() == 1:
        yield
        return
    from multiprocessing import forkserver, resource_tracker

    multiprocessing.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # started later by multiprocessing, it would not block signals
    with _block_signals(), _without_main(), _without_current_folder():
        forkserver.ensure_running()
    _method = "forkserver"
    try:
        yield
    finally:
        _method = "spawn"
        while _copies:
            kill_process(_copies.pop())
        server: Any = forkserver._forkserver
        os.kill(server._forkserver_pid, signal.SIGKILL)  # while it loads, it would keep our output open
        server._stop()


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start and return a process that runs `target` with signals blocked."""
    context: Any = multiprocessing.get_context(_method)
    process: BaseProcess = context.Process(target=target, args=arguments, daemon=True)
    with _block_signals(), _without_main():
        process.start()
    if has_fork_server():
        _copies.append(process)
    return process


def kill_process(process: BaseProcess) -> None:
    """Kill a process and wait for its end; workers ignore other signals."""
    process.kill()
    process.join()


def has_fork_server() -> bool:
    """Return True if workers are copies of a fork server, so that starting one is almost free."""
    return _method == "forkserver"


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals, also in processes started by the body, until they unblock them."""
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
    """Keep processes started by the body from importing the main script, which would start the sweep again."""
    original = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = original


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Keep Python processes started by the body from importing modules of the current folder."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
