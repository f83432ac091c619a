"""Graceful stop on a signal."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from fco_cli.errors import Interrupted

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
