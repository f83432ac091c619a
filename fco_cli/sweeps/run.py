"""Execution of a sweep: finished runs are reused, the others run as stacks."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Protocol

from fco_cli.config import Run
from fco_cli.config.run import plain, replace_numbers
from fco_cli.errors import SweepFailed, UserError
from fco_cli.files import as_yaml, write_atomically
from fco_cli.simulation.process import Stop
from fco_cli.simulation.record import Record
from fco_cli.sweeps.backends import BACKENDS, Options
from fco_cli.sweeps.stacks import Event, Stack, StackResult, group_into_stacks
from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger(__name__)

MAX_REASONS = 2  # reasons of failures in the message; the others are in run.log


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
        self.ended = StackResult()
        for run_id, run in self.unique.items():
            if not run.force and (result := Record(run.folder).result()):
                self.ended.results[run_id] = result
                run.check_metrics(result["final"])
        self.missing = [run for run_id, run in self.unique.items() if run_id not in self.ended.results]

    def run(self, watcher: Watcher) -> None:
        """Run the missing runs; raise UserError if all were refused, with the reason of the first."""
        for result in self.ended.results.values():
            watcher.add_finished(result["status"])
        with Stop() as stop:
            stacks = group_into_stacks(self.missing)
            results = BACKENDS[self.options.backend](stacks, self.options, stop, watcher.post)
            with watcher.show(stacks), closing(results):  # closing ends all processes
                for part in results:
                    self.ended.add(part)
                    self._save_hydra_output(part.results)  # now, while others run
            stop.check()
        for text, count in self.ended.warnings.values():
            log.warning(text if count == 1 else f"{text} ({count} such warnings)")
        if len(self.ended.refusals) == len(self.unique):
            raise UserError(next(iter(self.ended.refusals.values())))
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
    def finished_folders(self) -> list[Path]:
        return [run.folder for run_id, run in self.unique.items() if run_id in self.ended.results]

    @property
    def diverged(self) -> int:
        return sum(result["status"] == "diverged" for result in self.ended.results.values())

    @property
    def not_converged(self) -> int:
        verdicts = [result.get("convergence") for result in self.ended.results.values()]
        return sum(verdict is not None and not verdict["converged"] for verdict in verdicts)

    def values(self) -> list[float | Exception]:
        """Return the final objective of each job, in order, or the exception if it failed."""
        results, failure = self.ended.results, _failure(self.unique, self.ended)
        return [_objective(results[run.run_id]) if run.run_id in results else failure for run in self.runs]


def _objective(result: dict[str, Any]) -> float:
    """Return the value to be minimized by an optimizing sweeper: the final objective, infinite for a diverged run."""
    final = result["final"]["objective"]
    return math.inf if final is None or result["status"] == "diverged" else final


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
