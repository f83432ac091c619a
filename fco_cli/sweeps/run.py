"""Sweeps: estimated cost (dry run), execution and progress display.

Finished runs are reused, the others run as stacks.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fco_cli.config import Run
from fco_cli.config.run import plain, replace_numbers
from fco_cli.errors import SweepFailed, UserError
from fco_cli.files import as_yaml, write_atomically
from fco_cli.kernels.compiled import set_threads
from fco_cli.simulation.display import COMPILING, TimeLeft, duration
from fco_cli.simulation.engine import Simulation
from fco_cli.simulation.execute import PAUSED
from fco_cli.simulation.jobs import Job
from fco_cli.simulation.problems import bytes_per_job, problem_of, setup_of, varying_of
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record
from fco_cli.sweeps.backends import BACKENDS, Options, cores
from fco_cli.sweeps.stacks import Event, Stack, StackResult, group_into_stacks
from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger(__name__)

MAX_REASONS = 2  # reasons of failures in the message; the others are in run.log
PROBE_ROUNDS = 3
LOG_SECONDS = 10.0  # between log lines


class Watcher(Protocol):
    """Observer of a sweep."""

    def add_finished(self, status: str) -> None: ...

    def show(self, stacks: list[Stack]) -> AbstractContextManager[None]: ...

    def post(self, event: Event) -> None: ...


class Sweep:
    """All jobs of a Hydra multirun and their results."""

    def __init__(self, jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> None:
        self.options = Options(**options)
        self.jobs, self.overrides = jobs, overrides
        self.runs = list(_build_runs(jobs))
        self.unique = {run.run_id: run for run in self.runs}  # several jobs may be the same run
        self.outcome = StackResult()
        for run_id, run in self.unique.items():
            if not run.force and (result := Record(run.folder).result()):
                self.outcome.results[run_id] = result
                run.check_metrics(result["final"])
        self.missing = [run for run_id, run in self.unique.items() if run_id not in self.outcome.results]

    def run(self, watcher: Watcher, on_finished: Callable[[list[Path]], None] = lambda folders: None) -> None:
        """Run the missing runs; raise UserError if all were refused, with the reason of the first.

        `on_finished` is called with the records of finished runs, while others run.
        """
        on_finished(self.finished_folders)
        for result in self.outcome.results.values():
            watcher.add_finished(result["status"])
        with Stop() as stop:
            stacks = group_into_stacks(self.missing)
            results = BACKENDS[self.options.backend](stacks, self.options, stop, watcher.post)
            with watcher.show(stacks), closing(results):  # closing ends all processes
                for part in results:
                    self.outcome.add(part)
                    self._save_hydra_output(part.results)  # now, while others run
                    on_finished(self._finished_among(part.results))
            stop.check()
        for text, count in self.outcome.warnings.values():
            log.warning(text if count == 1 else f"{text} ({count} such warnings)")
        if len(self.outcome.refusals) == len(self.unique):
            raise UserError(next(iter(self.outcome.refusals.values())))
        self._save_hydra_output(self.unique)

    def _save_hydra_output(self, run_ids: Collection[str]) -> None:
        """Write Hydra's files of each job into its record, unless they exist."""
        shared: dict[int, dict[str, Any]] = {}
        for run, job, chosen in zip(self.runs, self.jobs, self.overrides, strict=True):
            folder = run.folder / ".hydra"
            if run.run_id in run_ids and run.folder.exists() and not folder.exists():
                if id(job.shared) not in shared:
                    shared[id(job.shared)] = plain(job.shared)
                Record(folder).create()
                config = as_yaml(replace_numbers(shared[id(job.shared)], job.numbers))
                write_atomically(folder / "config.yaml", config.encode(), flush=False)
                write_atomically(folder / "overrides.yaml", as_yaml(chosen).encode(), flush=False)

    @property
    def names(self) -> set[str]:
        """Names of the experiments of the runs, or of their tasks if they belong to none."""
        return {run.task.name if run.experiment is None else run.experiment.name for run in self.runs}

    @property
    def finished_folders(self) -> list[Path]:
        return self._finished_among(self.outcome.results)

    def _finished_among(self, results: Mapping[str, dict[str, Any]]) -> list[Path]:
        """Return the records of those results that are complete; a paused run has none."""
        finished = {run_id for run_id, result in results.items() if result["status"] != PAUSED}
        return [run.folder for run_id, run in self.unique.items() if run_id in finished]

    @property
    def diverged(self) -> int:
        return sum(result["status"] == "diverged" for result in self.outcome.results.values())

    @property
    def not_converged(self) -> int:
        verdicts = [result.get("convergence") for result in self.outcome.results.values()]
        return sum(verdict is not None and not verdict["converged"] for verdict in verdicts)

    @property
    def failure(self) -> SweepFailed:
        """The exception of the runs that failed or were refused."""
        return _failure(self.unique, self.outcome)


def _failure(unique: dict[str, Run], result: StackResult) -> SweepFailed:
    reasons: dict[str, list[str]] = {}
    for run_id, reason in (result.failures | result.refusals).items():
        reasons.setdefault(reason, []).append(str(unique[run_id].folder))
    many = f" for {len(reasons)} reasons, among them" if len(reasons) > MAX_REASONS else ""
    lines = [f"{sum(map(len, reasons.values()))} of {len(unique)} runs failed{many}:"]
    for reason, folders in list(reasons.items())[:MAX_REASONS]:
        more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        lines.append(f"  {folders[0]}{more}: {reason}")
    return SweepFailed("\n".join(lines))


def _build_runs(jobs: list[JobConfig]) -> Iterator[Run]:
    """Yield the run of each job; of jobs that differ only in numbers, the first alone is checked completely."""
    firsts: dict[tuple[int, frozenset[str]], Run] = {}
    for job in jobs:
        kind = id(job.shared), frozenset(job.numbers)
        if first := firsts.get(kind):
            yield first.with_numbers(job.numbers)
        else:
            firsts[kind] = Run.of(job.config())
            yield firsts[kind]


def describe_plan(runs: list[Run], done: int, options: Options) -> str:
    """Return the number of runs, the memory and the time of a sweep in a few lines, without writing any file."""
    stacks = group_into_stacks(runs)
    workers = max(1, min(options.n_jobs or cores(), len(stacks)))
    set_threads(max(1, cores() // workers))
    seconds, largest = 0.0, 0.0
    for stack in stacks:
        first = stack.runs[0]
        problem = problem_of(first)
        first.check_clients(problem.data.clients)
        data = problem.data.x.nbytes + problem.data.y.nbytes
        state = min(len(stack.runs) * bytes_per_job(first, problem), options.memory_mb * 2**20)
        largest = max(largest, (data + state) / 2**20)
        seconds += 0 if first.algo.one_shot else _seconds(stack.runs)
    solved = sorted({stack.runs[0].algo.name for stack in stacks if stack.runs[0].algo.one_shot})
    without = f", without {', '.join(solved)}, whose one round is the whole work" if solved else ""
    lines = [
        f"{len(runs)} run{'s' * (len(runs) != 1)} to do ({done} done already) in {len(stacks)} "
        f"stack{'s' * (len(stacks) != 1)}, {workers} at a time",
        f"at most {largest:.0f} MB of data and state per process, {largest * workers:.0f} MB in total",
        f"about {duration(seconds / workers)} if no run diverges (measured on {PROBE_ROUNDS} rounds per stack"
        f"{without})",
    ]
    return "\n".join(lines)


def _seconds(runs: list[Run]) -> float:
    """Return the estimated seconds of a stack: its rounds times the time of one, without compilation."""
    first = runs[0]
    setup = setup_of(first, problem_of(first))
    jobs = [Job() for _ in runs]
    simulation = Simulation(setup, jobs, varying_of(runs))
    for run in runs:
        run.check_metrics(jobs[0].history)
    simulation.advance()
    start = time.perf_counter()
    rounds = sum(simulation.advance() for _ in range(PROBE_ROUNDS))
    return (time.perf_counter() - start) / rounds * simulation.rounds if rounds else 0.0


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
            left = f"{duration((now - self.started) * (1 - done) / done)} left" if done else f"starting: {COMPILING}"
            log.info("%s, %s", self._counts(), left)
            self.last_logged = now

    def _counts(self) -> str:
        shown = {"finished": self.counts["finished"], "running": sum(self.running.values())}
        shown |= {"diverged": self.counts["diverged"]}
        shown |= {kind: self.counts[kind] for kind in (PAUSED, "failed", "refused") if self.counts[kind]}
        return ", ".join(f"{count} {kind}" for kind, count in shown.items())

    def _share_done(self) -> float:
        """Return the completed share of the work, with stacks weighted by their number of runs."""
        total = sum(self.sizes.values())
        return sum(self.sizes[number] * share for number, share in self.progress.items()) / total if total else 1.0
