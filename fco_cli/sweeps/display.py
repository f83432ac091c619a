"""Progress display of sweeps: a progress bar on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fco_cli.simulation.display import COMPILING, TimeLeft, time_left
from fco_cli.sweeps.stacks import Event, Stack

log = logging.getLogger(__name__)

LOG_SECONDS = 10.0  # between log lines


class SweepProgress:
    """Progress of a sweep: the numbers of finished, running, diverged, failed and refused runs."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.counts: Counter[str] = Counter()
        self.running: dict[int, int] = {}
        self.progress: dict[int, float] = {}

    def add_finished(self, status: str) -> None:
        """Count a run that was finished before the sweep."""
        self.counts[status] += 1

    @contextmanager
    def show(self, stacks: list[Stack]) -> Iterator[None]:
        """Show the progress of the stacks while the body runs."""
        self.sizes = {stack.number: len(stack.runs) for stack in stacks}
        self.started = self.last_logged = time.monotonic()
        columns = (BarColumn(), TextColumn("{task.description}"), TimeLeft())
        is_live = self.console.is_terminal
        with Progress(*columns, console=self.console, transient=True, disable=not is_live) as self.bar:
            self.task = self.bar.add_task(self._counts(), total=1.0)
            yield
        log.info(self._counts())

    def post(self, event: Event) -> None:
        """Update the display with an event of a stack."""
        if event.kind == "round":
            self.running[event.stack] = event.running
            self.progress[event.stack] = max(event.progress, self.progress.get(event.stack, 0.0))
        else:
            self.counts[event.kind] += 1
            self.running[event.stack] = max(0, self.running.get(event.stack, 1) - 1)
            if not self.running[event.stack]:
                self.progress[event.stack] = 1.0
        if event.text and self.counts["failed"] == 1:  # only the first; the sweep reports the total at its end
            self.bar.print(event.text) if self.console.is_terminal else log.error(event.text)
        done = self._share_done()
        self.bar.update(self.task, completed=done, description=self._counts())
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_logged > LOG_SECONDS:
            left = time_left((now - self.started) * (1 - done) / done) if done else f"starting: {COMPILING}"
            log.info("%s, %s", self._counts(), left)
            self.last_logged = now

    def _counts(self) -> str:
        shown = {"finished": self.counts["finished"], "running": sum(self.running.values())}
        shown |= {"diverged": self.counts["diverged"]}
        shown |= {kind: self.counts[kind] for kind in ("failed", "refused") if self.counts[kind]}
        return ", ".join(f"{count} {kind}" for kind, count in shown.items())

    def _share_done(self) -> float:
        """Return the completed share of the work, with stacks weighted by their number of runs."""
        total = sum(self.sizes.values())
        return sum(self.sizes[number] * share for number, share in self.progress.items()) / total if total else 1.0
