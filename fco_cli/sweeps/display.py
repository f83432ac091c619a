"""Progress display of runs and sweeps: a progress bar on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from fco_cli.config import Run
from fco_cli.simulation.engine import Simulation
from fco_cli.sweeps.runner import Outcome
from fco_cli.sweeps.stacks import Event, Stack

log = logging.getLogger(__name__)

RUN_SECONDS, SWEEP_SECONDS = 5.0, 10.0  # between log lines
COMPILING = "compiling the kernels, once on this machine"


def time_left(seconds: float) -> str:
    """Return a duration as text."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"{minutes} min left" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min left"


class TimeLeft(ProgressColumn):
    """Column of a progress bar with the time left."""

    def render(self, task: Task) -> Text:
        return Text("" if task.time_remaining is None else time_left(task.time_remaining))


@contextmanager
def on_compilation(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` whenever Numba compiles a kernel, but not when it loads one from its cache."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            callback()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


class RunProgress:
    """Progress of one run: round, main metric and time left, as a progress bar or as a log line every few seconds."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeLeft(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.is_live = console.is_terminal
        self.listener = ExitStack()
        self.is_compiling = False

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.bar.stop()

    def on_start(self, runs: list[Run], rounds: int) -> None:
        self.metric = runs[0].task.main_metric
        self.first: int | None = None
        self.rounds = rounds
        self.task = self.bar.add_task("", total=rounds)
        self.listener.enter_context(on_compilation(self._show_compilation))

    def _show_compilation(self) -> None:
        if not self.is_compiling and self.first is None:
            self.is_compiling = True
            self.bar.update(self.task, description=COMPILING) if self.is_live else log.info(COMPILING)

    def on_round(self, simulation: Simulation) -> None:
        if not simulation.running:
            return
        done, now = simulation.round, time.monotonic()
        if self.first is None:
            self.first, self.started, self.last_logged = done, now, now
            self.listener.close()
            if done > 1:
                log.info("continued from round %d", done - 1)
        value = f"{self.metric} {simulation.running[0].history[self.metric][-1]:.4g}"
        if self.is_live:
            self.bar.update(self.task, completed=done, description=value)
        elif now - self.last_logged > RUN_SECONDS:
            seconds = (now - self.started) / max(done - self.first, 1)  # per round
            log.info("round %d of %d, %s, %s", done, self.rounds, value, time_left(seconds * (self.rounds - done)))
            self.last_logged = now

    def on_outcome(self, outcome: Outcome) -> None:
        pass


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
        if not self.console.is_terminal and now - self.last_logged > SWEEP_SECONDS:
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
