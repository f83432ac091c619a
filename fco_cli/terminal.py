"""What a person sees of a single run: progress while it works, a small table at its end."""

from __future__ import annotations

import logging
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fco_cli.config import Run
from fco_cli.execute import Outcome
from fco_cli.simulation.engine import Simulation

log = logging.getLogger(__name__)

LOG_SECONDS = 5.0


class RunProgress:
    """A progress bar on a terminal, a log line every few seconds elsewhere; round, main metric and ETA in both."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.live = console.is_terminal

    def __enter__(self) -> RunProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_start(self, runs: list[Run], rounds: int) -> None:
        self.metric = runs[0].task.main_metric
        self.first: int | None = None
        self.rounds = rounds
        self.task = self.bar.add_task("", total=rounds)

    def on_round(self, simulation: Simulation) -> None:
        if not simulation.running:
            return
        done, now = simulation.round, time.monotonic()
        if self.first is None:
            self.first, self.started, self.said = done, now, now
        value = f"{self.metric} {simulation.running[0].history[self.metric][-1]:.4g}"
        if self.live:
            self.bar.update(self.task, completed=done, description=value)
        elif now - self.said > LOG_SECONDS:
            pace = (now - self.started) / max(done - self.first, 1)
            log.info("round %d of %d, %s, %.0f s left", done, self.rounds, value, pace * (self.rounds - done))
            self.said = now

    def on_outcome(self, outcome: Outcome) -> None:
        pass


def final_table(result: dict[str, Any]) -> Table:
    """The final metrics, a row each."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in result["final"].items():
        table.add_row(name.replace("_", " "), "not finite" if value is None else f"{value:.6g}")
    if result["optimality_gap"] is not None:
        table.add_row("gap to the optimum", f"{result['optimality_gap']:.6g}")
    table.add_row("seconds", f"{result['seconds']:.2f}")
    return table
