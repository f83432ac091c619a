"""The process that runs a simulation: stop on a signal, software versions, and a stopwatch without compile time."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fco_cli.errors import Interrupted
from fco_cli.problem.registry import loaded_plugins, plugin_versions

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass
class Stop:
    """Context that records the first signal; a second one raises KeyboardInterrupt."""

    signal_number: int | None = None
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._record_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _record_signal(self, number: int, _frame: object) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.requested:
            assert self.signal_number is not None
            raise Interrupted(self.signal_number)


def software(plugins: Iterable[str] = ()) -> dict[str, Any]:
    """Return the versions of Python, the packages and the source, and the digests of a run's plug-ins by path."""
    digests = {str(plugin.path): plugin.digest for plugin in loaded_plugins(plugins).values()}
    return _versions() | ({"plugins": digests} if digests else {})


@functools.cache
def _versions() -> dict[str, Any]:
    names = ("fco-cli", "numpy", "scipy", "numba", "hydra-core")
    return {
        "versions": {name: version(name) for name in names} | plugin_versions(),
        "python": sys.version.split()[0],
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """Return the git revision of this software if it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


class Stopwatch:
    """Stopwatch that excludes the time of Numba's compiler and of loading machine code."""

    def __init__(self) -> None:
        self._last = self._now()

    def lap(self) -> float:
        """Return the seconds since the last call, or since the creation."""
        before, self._last = self._last, self._now()
        return max(0.0, self._last - before)

    @staticmethod
    def _now() -> float:
        listener = _compile_listener()
        return time.monotonic() - (listener.duration if listener.done else 0.0)


@functools.cache
def _compile_listener() -> Any:
    """Return a listener that sums the seconds in which Numba's compiler lock is held.

    Numba holds it while it compiles a kernel and while it loads machine code.
    """
    from numba.core import event

    listener = event.TimingListener()
    event.register("numba:compiler_lock", listener)
    return listener
