"""Stacks: runs that differ only in settings that may vary along the job axis, and their execution.

Jobs leave the stack when they diverge or end. Each has a separate record.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from fco_cli.config import Run
from fco_cli.errors import Interrupted, NoCertificate, UserError, one_line
from fco_cli.simulation import problems
from fco_cli.simulation.engine import Simulation
from fco_cli.simulation.execute import Outcome, execute, problem_and_smoothness
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record

EVENT_SECONDS = 0.3
LARGEST = 200  # runs per stack; each keeps a lock file open, and some systems allow 256 open files


@dataclass(frozen=True)
class Stack:
    """Group of runs that are simulated together."""

    number: int
    runs: list[Run]


@dataclass(frozen=True)
class Event:
    """Progress message of a stack."""

    stack: int
    kind: str  # round, finished, diverged, paused, failed, or refused (not started because of a user error)
    running: int = 0  # jobs, for `round`
    progress: float = 0.0  # completed share of the rounds, for `round`
    text: str = ""


Post = Callable[[Event], None]


@dataclass
class StackResult:
    """Results of runs by run id, and the reasons of those that failed or were refused.

    `warnings` maps the source of a warning to the text of the first one and their number.
    """

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, tuple[str, int]] = field(default_factory=dict)

    def add(self, other: StackResult) -> None:
        self.results |= other.results
        self.failures |= other.failures
        self.refusals |= other.refusals
        for source, (text, count) in other.warnings.items():
            self.warn(source, text, count)

    def warn(self, source: str, text: str, count: int = 1) -> None:
        first, before = self.warnings.get(source, (text, 0))
        self.warnings[source] = first, before + count


ResultStream = Generator[StackResult, None, None]  # closing it ends the workers


class _Collector(logging.Handler):
    """Handler that collects warnings, which a sweep prints once at its end, and forwards lower levels."""

    def __init__(self, result: StackResult) -> None:
        super().__init__()
        self.result = result

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            logging.getLogger().handle(record)
        elif record.name == "py.warnings":  # Python logs all its warnings from the same line
            text = record.getMessage().splitlines()[0]
            self.result.warn(text, text)
        else:
            self.result.warn(f"{record.pathname}:{record.lineno}", record.getMessage())


@contextmanager
def _collect_warnings(result: StackResult) -> Iterator[None]:
    collector = _Collector(result)
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


def group_into_stacks(runs: list[Run]) -> list[Stack]:
    """Group runs by the identity of their stack and split very large groups.

    Algorithms alternate, so that processes that start together compile different kernels, which the others then load
    from the cache.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.identity.stack, []).append(run)
    by_algorithm: dict[str, list[list[Run]]] = {}
    for members in groups.values():
        parts = [members[low : low + LARGEST] for low in range(0, len(members), LARGEST)]
        by_algorithm.setdefault(members[0].algo.name, []).extend(parts)
    alternating = [part for turn in zip_longest(*by_algorithm.values()) for part in turn if part is not None]
    return [Stack(number, members) for number, members in enumerate(alternating)]


class Reporter:
    """Observer that posts the events of a stack, at a limited rate."""

    def __init__(self, stack: int, post: Post) -> None:
        self.stack, self.post, self.last_posted = stack, post, 0.0

    def on_start(self, runs: Sequence[problems.Run], rounds: int) -> None:
        self.post(Event(self.stack, "round", running=len(runs)))

    def on_round(self, simulation: Simulation) -> None:
        if time.monotonic() - self.last_posted > EVENT_SECONDS:
            progress = simulation.round / simulation.rounds
            self.post(Event(self.stack, "round", running=len(simulation.running), progress=progress))
            self.last_posted = time.monotonic()

    def on_outcome(self, outcome: Outcome) -> None:
        self.post(Event(self.stack, outcome.result["status"]))


def run_stack(stack: Stack, memory_mb: int, stop: Stop, post: Post) -> StackResult:
    """Execute a stack; if it fails as a whole, execute its runs one by one, so that the others can finish."""
    stack_result, retried = StackResult(), []
    with _collect_warnings(stack_result):
        try:
            stop.check()
            for outcome in execute(stack.runs, Reporter(stack.number, post), stop, memory_mb):
                stack_result.results[outcome.run.run_id] = outcome.result
        except Interrupted:
            stack_result.results |= _stored_results(stack)
        except Exception as problem:  # any failure is reported, and the other runs continue
            if isinstance(problem, UserError) and not isinstance(problem, NoCertificate):
                stack_result.add(_refuse_stack(stack, problem, post))  # missing data, a full disk: the same for all
            elif len(stack.runs) == 1:
                stack_result.add(_record_failure(stack, problem, post))
            else:
                retried = stack.runs
    for run in retried:  # outside of the collector: each collects its own warnings
        stack_result.add(run_stack(Stack(stack.number, [run]), memory_mb, stop, post))
    return stack_result


def prepare(run: Run) -> StackResult:
    """Build and cache the problem of a run; return its warnings, which are not repeated when the run is executed.

    Errors are ignored, since the execution raises them again.
    """
    result = StackResult()
    with _collect_warnings(result), suppress(Exception):
        problem_and_smoothness(run)
        return result
    return StackResult()


def abandon_stack(stack: Stack, reason: str, post: Post, kind: str = "failed") -> StackResult:
    """Return the result of a stack that cannot be executed: stored results, and failures with the given reason."""
    done = _stored_results(stack)
    failures = {run.run_id: reason for run in stack.runs if run.run_id not in done}
    for _ in failures:
        post(Event(stack.number, kind))
    return StackResult(results=done, failures=failures)


def _refuse_stack(stack: Stack, problem: UserError, post: Post) -> StackResult:
    abandoned = abandon_stack(stack, str(problem), post, "refused")
    return StackResult(results=abandoned.results, refusals=abandoned.failures)


def _stored_results(stack: Stack) -> dict[str, dict[str, Any]]:
    """Return the results of the runs that have finished."""
    results = {}
    for run in stack.runs:
        with suppress(UserError):  # a folder that cannot be read; the stack's own error is reported
            if not run.force and (result := Record(run.folder).result()):
                results[run.run_id] = result
    return results


def _record_failure(stack: Stack, problem: Exception, post: Post) -> StackResult:
    (run,) = stack.runs
    reason = f"{type(problem).__name__}: {one_line(problem)}"
    trace = traceback.format_exc()
    with suppress(UserError):  # a folder that cannot be written; the failure is posted anyway
        record = Record(run.folder)
        record.create()
        record.note(f"failed\n{trace}")
    post(Event(stack.number, "failed", text=failure_text(run, reason)))
    return StackResult(failures={run.run_id: reason})


def failure_text(run: Run, reason: str) -> str:
    return f"failed: {run.describe()}: {reason} (trace in {run.folder}/run.log)"
