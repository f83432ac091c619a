"""A stopwatch that excludes the time in which kernels are compiled or loaded."""

from __future__ import annotations

import functools
import time
from typing import Any


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
