"""What a person sees of a run or a sweep while it works: a live line on a terminal, log lines elsewhere."""

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
    """As people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    minutes = round(seconds / 60)
    return f"{minutes} min left" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min left"


class TimeLeft(ProgressColumn):
    """The same on a progress bar."""

    def render(self, task: Task) -> Text:
        return Text("" if task.time_remaining is None else time_left(task.time_remaining))


@contextmanager
def noting_compilation(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` as soon as Numba compiles, be it that no cached kernel fits; not where it only loads one."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            say()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


class RunProgress:
    """A progress bar on a terminal, a log line every few seconds elsewhere; round, main metric and ETA in both."""

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
        self.live = console.is_terminal
        self.compilation = ExitStack()
        self.compiling = False

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.compilation.close()
        self.bar.stop()

    def on_start(self, runs: list[Run], rounds: int) -> None:
        self.metric = runs[0].task.main_metric
        self.first: int | None = None
        self.rounds = rounds
        self.task = self.bar.add_task("", total=rounds)
        self.compilation.enter_context(noting_compilation(self._on_compilation))

    def _on_compilation(self) -> None:
        if not self.compiling and self.first is None:
            self.compiling = True
            self.bar.update(self.task, description=COMPILING) if self.live else log.info(COMPILING)

    def on_round(self, simulation: Simulation) -> None:
        if not simulation.running:
            return
        done, now = simulation.round, time.monotonic()
        if self.first is None:
            self.first, self.started, self.said = done, now, now
            self.compilation.close()
            if done > 1:
                log.info("continued from round %d", done - 1)
        value = f"{self.metric} {simulation.running[0].history[self.metric][-1]:.4g}"
        if self.live:
            self.bar.update(self.task, completed=done, description=value)
        elif now - self.said > RUN_SECONDS:
            pace = (now - self.started) / max(done - self.first, 1)
            log.info("round %d of %d, %s, %s", done, self.rounds, value, time_left(pace * (self.rounds - done)))
            self.said = now

    def on_outcome(self, outcome: Outcome) -> None:
        pass


class SweepProgress:
    """Counts finished, running, diverged, failed and refused runs; a live line on a terminal, log lines elsewhere."""

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
        columns = (BarColumn(), TextColumn("{task.description}"), TimeLeft())
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
        if event.text and self.counts["failed"] == 1:  # the first at once; how many there were is said at the end
            self.bar.print(event.text) if self.console.is_terminal else log.error(event.text)
        done = self._share_done()
        self.bar.update(self.task, completed=done, description=self._counts())
        now = time.monotonic()
        if not self.console.is_terminal and now - self.said > SWEEP_SECONDS:
            left = time_left((now - self.started) * (1 - done) / done) if done else f"starting: {COMPILING}"
            log.info("%s, %s", self._counts(), left)
            self.said = now

    def _counts(self) -> str:
        shown = {"finished": self.counts["finished"], "running": sum(self.running.values())}
        shown |= {"diverged": self.counts["diverged"]}
        shown |= {kind: self.counts[kind] for kind in ("failed", "refused") if self.counts[kind]}
        return ", ".join(f"{count} {kind}" for kind, count in shown.items())

    def _share_done(self) -> float:
        """Of the work, a stack counted by its number of runs."""
        total = sum(self.sizes.values())
        return sum(self.sizes[number] * share for number, share in self.progress.items()) / total if total else 1.0
