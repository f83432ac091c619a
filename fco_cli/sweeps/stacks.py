"""Stacks: runs that differ only in what may vary along the job axis, and how one of them is executed.

A stack's jobs leave it when they diverge or end, each with a record of its own.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fco_cli.config import Run
from fco_cli.errors import Interrupted, NoCertificate, UserError, one_line
from fco_cli.simulation.engine import Simulation
from fco_cli.simulation.record import Record
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.runner import Outcome, execute, problem_and_smoothness

EVENT_SECONDS = 0.3
LARGEST = 200  # runs: each holds a lock file open, and a process may open no more than 256 files on some systems


@dataclass(frozen=True)
class Stack:
    """Runs that are simulated together."""

    number: int
    runs: list[Run]


@dataclass(frozen=True)
class Event:
    """What a stack says of itself while it runs."""

    stack: int
    kind: str  # round, finished, diverged, failed, or refused: never begun, for what the user asked cannot be
    running: int = 0  # jobs, for `round`
    progress: float = 0.0  # the share of the rounds that are done, for `round`
    text: str = ""


Post = Callable[[Event], None]


@dataclass
class Ended:
    """How runs ended, by run id: their results, or the reasons why they failed or could not be run at all.

    Warnings by the place that they came from: the first one's text, and how many there were.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, other: Ended) -> None:
        self.results |= other.results
        self.failures |= other.failures
        self.refusals |= other.refusals
        for place, (text, count) in other.warnings.items():
            self.warn(place, text, count)

    def warn(self, place: str, text: str, count: int = 1) -> None:
        first, before = self.warnings.get(place, (text, 0))
        self.warnings[place] = first, before + count


Working = Generator[Ended, None, None]  # stacks at work; to close it ends the work


class _Collector(logging.Handler):
    """Keeps warnings for the sweep's end, where each is said once; passes on what is less than a warning."""

    def __init__(self, ended: Ended) -> None:
        super().__init__()
        self.ended = ended

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            logging.getLogger().handle(record)
        elif record.name == "py.warnings":  # Python's own warnings all pass through one line of its library
            text = record.getMessage().splitlines()[0]
            self.ended.warn(text, text)
        else:
            self.ended.warn(f"{record.pathname}:{record.lineno}", record.getMessage())


@contextmanager
def _collecting_warnings(ended: Ended) -> Iterator[None]:
    collector = _Collector(ended)
    sources = [logging.getLogger(name) for name in ("fco_cli", "py.warnings")]
    propagated = [source.propagate for source in sources]
    logging.captureWarnings(True)
    for source in sources:
        source.addHandler(collector)
        source.propagate = False
    try:
        yield
    finally:
        for source, before in zip(sources, propagated, strict=True):
            source.removeHandler(collector)
            source.propagate = before
        logging.captureWarnings(False)


def stacks_of(runs: list[Run]) -> list[Stack]:
    """Group runs by their stack's identity; very large groups are divided.

    One stack of every algorithm comes before the second of any: processes that begin together then compile different
    kernels, and find each other's later.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.identity.stack, []).append(run)
    turns: dict[str, list[list[Run]]] = {}
    for members in groups.values():
        parts = [members[low : low + LARGEST] for low in range(0, len(members), LARGEST)]
        turns.setdefault(members[0].algo.name, []).extend(parts)
    in_turn = [part for turn in zip_longest(*turns.values()) for part in turn if part is not None]
    return [Stack(number, members) for number, members in enumerate(in_turn)]


class Reporter:
    """Watches a stack where it runs and posts events, not too many."""

    def __init__(self, stack: int, post: Post) -> None:
        self.stack, self.post, self.said = stack, post, 0.0

    def on_start(self, runs: list[Run], rounds: int) -> None:
        self.post(Event(self.stack, "round", running=len(runs)))

    def on_round(self, simulation: Simulation) -> None:
        if time.monotonic() - self.said > EVENT_SECONDS:
            progress = simulation.round / simulation.rounds
            self.post(Event(self.stack, "round", running=len(simulation.running), progress=progress))
            self.said = time.monotonic()

    def on_outcome(self, outcome: Outcome) -> None:
        self.post(Event(self.stack, outcome.result["status"]))


def run_stack(stack: Stack, memory_mb: int, stop: Stop, post: Post) -> Ended:
    """Execute a stack. Where it fails as a whole its runs are tried one by one, so that only those fail that must."""
    ended, retried = Ended(), []
    with _collecting_warnings(ended):
        try:
            stop.check()
            for outcome in execute(stack.runs, Reporter(stack.number, post), stop, memory_mb):
                ended.results[outcome.run.run_id] = outcome.result
        except Interrupted:
            ended.results |= _on_disk(stack)
        except Exception as problem:  # whatever it is: it is reported, and the other runs go on
            if isinstance(problem, UserError) and not isinstance(problem, NoCertificate):
                ended.add(_refused(stack, problem, post))  # data that are not there, a full disk: the same for all
            elif len(stack.runs) == 1:
                ended.add(_failed(stack, problem, post))
            else:
                retried = stack.runs
    for run in retried:  # outside of the collector: each collects its own warnings
        ended.add(run_stack(Stack(stack.number, [run]), memory_mb, stop, post))
    return ended


def prepare(run: Run) -> Ended:
    """Have at hand what a stack with this run needs first; the warnings of that are not said again when it runs.

    What is wrong with the run is.
    """
    ended = Ended()
    with _collecting_warnings(ended), suppress(Exception):
        problem_and_smoothness(run)
        return ended
    return Ended()


def given_up(stack: Stack, reason: str, post: Post, kind: str = "failed") -> Ended:
    """The end of a stack whose process, or whose workers, died again and again."""
    done = _on_disk(stack)
    left = {run.run_id: reason for run in stack.runs if run.run_id not in done}
    for _ in left:
        post(Event(stack.number, kind))
    return Ended(results=done, failures=left)


def _refused(stack: Stack, problem: UserError, post: Post) -> Ended:
    ended = given_up(stack, str(problem), post, "refused")
    return Ended(results=ended.results, refusals=ended.failures)


def _on_disk(stack: Stack) -> dict[str, dict[str, Any]]:
    """The results of those runs that were done before something happened to the others."""
    found = {}
    for run in stack.runs:
        with suppress(UserError):  # a folder that cannot even be read: what is said of the stack must do
            if not run.force and (result := Record(run.folder).result()):
                found[run.run_id] = result
    return found


def _failed(stack: Stack, problem: Exception, post: Post) -> Ended:
    (run,) = stack.runs
    reason = f"{type(problem).__name__}: {one_line(problem)}"
    trace = traceback.format_exc()
    with suppress(UserError):  # nowhere to write: what is said below must do
        record = Record(run.folder)
        record.create()
        record.note(f"failed\n{trace}")
    post(Event(stack.number, "failed", text=failure_text(run, reason)))
    return Ended(failures={run.run_id: reason})


def failure_text(run: Run, reason: str) -> str:
    return f"failed: {run.describe()}: {reason} (trace in {run.folder}/run.log)"
