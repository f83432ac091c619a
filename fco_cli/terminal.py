"""What a person sees of a single run: progress while it works, a small table at its end."""

from __future__ import annotations

import logging
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fco_cli.advice import Constants
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
    table.add_row("seconds", f"{result['seconds']:.2f}")
    return table


def theory_table(result: dict[str, Any]) -> Table:
    """The statements, a row each; slopes are measured / of the bound."""
    header, *body = result["table"]
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(header):
        table.add_column(title, justify="left" if i == 0 else "right")
    for row in body:
        table.add_row(*row)
    broken = ", ".join(f"{count} of {statement}" for statement, count in result["violated"].items())
    verdict = f"{result['cells']} cells, bound violated in {broken or 'none'}"
    errors = ", ".join(f"{name} {error:.1e}" for name, error in result["identity_error"].items())
    table.caption = f"{verdict}; the key identity is off by {errors}; {result['seconds']} s"
    return table


def advice_tables(constants: Constants, grid: list[float], chosen: float) -> list[Table]:
    """The estimates, the theorems' step sizes with what limits them, and where the paper's grid lies."""
    estimates = Table(box=None, pad_edge=False, title="estimated from the data", title_justify="left")
    for column in ("constant", "value", "what it is"):
        estimates.add_column(column, justify="right" if column == "value" else "left")
    meanings = {
        "L": (constants.smoothness, "largest curvature of the loss on a batch"),
        "sigma": (constants.sigma, "deviation of a batch's gradient from its client's"),
        "zeta": (constants.zeta, "largest distance of a client's gradient from the mean"),
        "G": (constants.gradient, "longest gradient of a batch"),
        "B": (constants.divergence, "D_h(w*, w_0), from the start to the pooled optimum"),
        "K": (constants.steps, "local steps"),
        "M": (constants.clients, "clients of a round"),
        "R": (constants.rounds, "rounds"),
    }
    for name, (value, meaning) in meanings.items():
        estimates.add_row(name, f"{value:.4g}", meaning)

    advice = Table(box=None, pad_edge=False, title="recommended client_lr", title_justify="left")
    for column in ("by", "client_lr", "limited by"):
        advice.add_column(column, justify="right" if column == "client_lr" else "left")
    for theorem, limits in constants.recommended().items():
        reason = min(limits, key=lambda key: limits[key])
        advice.add_row(theorem, f"{limits[reason]:.2g}", reason)
    advice.add_row("largest stable, 2/L", f"{constants.largest_stable:.2g}", "beyond it batches overshoot")

    safe, stable = 1 / (4 * constants.smoothness), constants.largest_stable
    places = Table(box=None, pad_edge=False, title="the paper's grid, and this run", title_justify="left")
    places.add_column("client_lr", justify="right")
    places.add_column("where")
    for rate in sorted({*grid, chosen}):
        where = "covered by the theorems" if rate <= safe else "stable, beyond the theorems' 1/(4L)"
        where = where if rate <= stable else "beyond 2/L: may diverge"
        places.add_row(f"{rate:g}", where + (" (this run)" if rate == chosen else ""))
    return [estimates, advice, places]
