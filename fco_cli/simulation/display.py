"""Progress of one run: a progress bar on a terminal, log lines otherwise, and calls of a function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from fco_cli.simulation.engine import Simulation
from fco_cli.simulation.execute import Observer, Outcome
from fco_cli.simulation.jobs import Job
from fco_cli.simulation.problems import Run

log = logging.getLogger(__name__)

LOG_SECONDS = 5.0  # between log lines
COMPILING = "compiling the kernels, once on this machine: about 10 s on a quiet one"


def duration(seconds: float) -> str:
    """Return a duration as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class TimeLeft(ProgressColumn):
    """Column of a progress bar with the time left."""

    def render(self, task: Task) -> Text:
        return Text("" if task.time_remaining is None else f"{duration(task.time_remaining)} left")


@contextmanager
def on_compilation(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` before Numba compiles a kernel, but not when it loads one from its cache."""
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
        self.compiled = 0  # kernels

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.bar.stop()

    def on_start(self, runs: Sequence[Run], rounds: int) -> None:
        self.metric = runs[0].task.main_metric
        self.first: int | None = None
        self.rounds = rounds
        self.task = self.bar.add_task("", total=rounds)
        self.listener.enter_context(on_compilation(self._show_compilation))

    def _show_compilation(self) -> None:
        if self.first is not None:
            return
        if not self.compiled:
            self.compilation_started = time.monotonic()
            if not self.is_live:
                log.info(COMPILING)
        self.compiled += 1
        self.bar.update(self.task, description=f"{COMPILING}; kernel {self.compiled}")

    def on_round(self, simulation: Simulation) -> None:
        if not simulation.running:
            return
        done, now = simulation.round, time.monotonic()
        if self.first is None:
            self.first, self.started, self.last_logged = done, now, now
            self.listener.close()
            if self.compiled:
                log.info("compiled %d kernels in %.0f s", self.compiled, now - self.compilation_started)
            if done > 1:
                log.info("continued from round %d", done - 1)
        value = f"{self.metric} {simulation.running[0].history[self.metric][-1]:.4g}"
        if self.is_live:
            self.bar.update(self.task, completed=done, description=value)
        elif now - self.last_logged > LOG_SECONDS:
            seconds = (now - self.started) / max(done - self.first, 1)  # per round
            log.info("round %d of %d, %s, %s left", done, self.rounds, value, duration(seconds * (self.rounds - done)))
            self.last_logged = now

    def on_outcome(self, outcome: Outcome) -> None:
        pass


class RoundCalls:
    """Observer of one run that calls a function with the metrics of every evaluated round, in order.

    A run that continues from a checkpoint begins with its stored rounds. Rounds arrive in batches, as the simulation
    evaluates them.
    """

    def __init__(self, inner: Observer, call: Callable[[dict[str, float]], None]) -> None:
        self.inner, self.call = inner, call
        self.job: Job | None = None
        self.calls = 0

    def on_start(self, runs: Sequence[Run], rounds: int) -> None:
        self.inner.on_start(runs, rounds)

    def on_round(self, simulation: Simulation) -> None:
        self.inner.on_round(simulation)
        self.job = self.job or next(iter((*simulation.running, *simulation.finished)), None)
        if self.job is not None:
            for row in self.job.history.rows[self.calls :]:
                self.calls += 1
                self.call(dict(zip(self.job.history.names, row, strict=True)))

    def on_outcome(self, outcome: Outcome) -> None:
        self.inner.on_outcome(outcome)
