"""What a person sees of a sweep: one live line while it runs, a table of the best at its end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fco_cli.sweeps.stacks import Event, Stack

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0


class Display:
    """Counts finished, running, diverged and failed runs; a live line on a terminal, log lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts: Counter[str] = Counter()
        self.running: dict[int, int] = {}
        self.progress: dict[int, float] = {}

    def already(self, status: str) -> None:
        """Count a run that was done before."""
        self.counts[status] += 1

    @contextmanager
    def watching(self, stacks: list[Stack]) -> Iterator[None]:
        """Show the stacks while the body runs."""
        self.sizes = {stack.number: len(stack.runs) for stack in stacks}
        self.started = self.said = time.monotonic()
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        live = self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=not live) as self.bar:
            self.task = self.bar.add_task(self._counts(), total=1.0)
            yield
        log.info(self._counts())

    def post(self, event: Event) -> None:
        """Take note of what a stack says."""
        if event.kind == "round":
            self.running[event.stack] = event.running
            self.progress[event.stack] = max(event.progress, self.progress.get(event.stack, 0.0))
        else:
            self.counts[event.kind] += 1
            self.running[event.stack] = max(0, self.running.get(event.stack, 1) - 1)
            if not self.running[event.stack]:
                self.progress[event.stack] = 1.0
        if event.text:
            self.bar.print(event.text) if self.console.is_terminal else log.error(event.text)
        done = self._share_done()
        self.bar.update(self.task, completed=done, description=self._counts())
        now = time.monotonic()
        if not self.console.is_terminal and now - self.said > LOG_SECONDS:
            left = f", {(now - self.started) * (1 - done) / done:.0f} s left" if done else ""
            log.info("%s%s", self._counts(), left)
            self.said = now

    def _counts(self) -> str:
        failed = f", {self.counts['failed']} failed" if self.counts["failed"] else ""
        running = sum(self.running.values())
        return f"{self.counts['finished']} finished, {running} running, {self.counts['diverged']} diverged{failed}"

    def _share_done(self) -> float:
        """Of the work, a stack counted by its number of runs."""
        total = sum(self.sizes.values())
        return sum(self.sizes[number] * share for number, share in self.progress.items()) / total if total else 1.0
