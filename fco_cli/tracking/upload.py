"""Upload of finished runs to a tracker, whose failures never fail a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fco_cli.errors import one_line
from fco_cli.tracking.base import Sender, Sweep, TrackedRun, Tracking

log = logging.getLogger(__name__)


class Upload:
    """Sender of runs that the tracker does not have yet; after the first failure it sends nothing more."""

    def __init__(self, tracking: Tracking, sweep: Sweep) -> None:
        self.tracking, self.sweep = tracking, sweep
        self.sender: Sender | None = None
        self.failed, self.count = not tracking.is_active, 0
        self.sent: set[str] = set()

    def add(self, runs: Iterable[TrackedRun]) -> None:
        """Send finished runs."""
        for run in runs:
            if not self.failed:
                self._attempt(lambda run=run: self._send(run))  # type: ignore[misc]

    def _send(self, run: TrackedRun) -> None:
        if self.sender is None:
            self.sender = self.tracking.open(self.sweep)
            self.sent = set(self.sender.sent())
        if run.run_id not in self.sent:
            self.sender.send(run)
            self.sent.add(run.run_id)
            self.count += 1

    def close(self, figures: Callable[[], Iterable[tuple[str, bytes]]] = list) -> None:
        """Send the figures of the sweep if any of its runs was new, and complete the upload."""
        if self.sender is not None and not self.failed:
            sender = self.sender
            if self.count:
                self._attempt(lambda: sender.send_figures(figures()))
            if not self.failed:
                self._attempt(sender.close)
        if self.count and not self.failed:
            log.info("tracking: sent %d run%s to %s", self.count, "s" * (self.count > 1), self.tracking.destination)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as problem:  # of any tracker: the records are complete
            self.failed = True
            log.warning(
                "tracking: %s failed (%s: %s); records are complete: repeat the command or use fco-track to send them",
                self.tracking.destination, type(problem).__name__, one_line(problem)[:300],
            )  # fmt: skip
