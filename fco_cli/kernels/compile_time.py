"""A stopwatch that does not count the seconds in which kernels are compiled or loaded."""

from __future__ import annotations

import functools
import time
from typing import Any


class Stopwatch:
    """Seconds of work of this process, without those of Numba's compiler and of loading machine code."""

    def __init__(self) -> None:
        self._last = self._now()

    def lap(self) -> float:
        """Return the seconds since the last call, or since the start."""
        before, self._last = self._last, self._now()
        return max(0.0, self._last - before)

    @staticmethod
    def _now() -> float:
        compiling = _compiling()
        return time.monotonic() - (compiling.duration if compiling.done else 0.0)


@functools.cache
def _compiling() -> Any:
    """Return a listener that adds up the seconds in which Numba's compiler is locked: it is while a kernel is
    compiled and while its machine code is loaded."""
    from numba.core import event

    listener = event.TimingListener()
    event.register("numba:compiler_lock", listener)
    return listener
