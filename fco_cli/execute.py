"""From runs to records: everything that happens to a stack of runs between its configuration and its results."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from omegaconf import OmegaConf
from threadpoolctl import threadpool_limits

from fco_cli.algorithms import Jobs
from fco_cli.config import Run
from fco_cli.errors import Interrupted
from fco_cli.problem.compiled import set_threads
from fco_cli.problem.problem import Problem
from fco_cli.simulation.engine import Experiment, Job, Simulation
from fco_cli.simulation.record import Record, replace_folder
from fco_cli.simulation.smoothness import estimate_smoothness

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 5.0


class Observer(Protocol):
    """Someone who watches a stack."""

    def on_start(self, runs: list[Run], rounds: int) -> None: ...

    def on_round(self, simulation: Simulation) -> None: ...


@dataclass
class Outcome:
    """How one run ended: its result, and whether it was there already."""

    run: Run
    result: dict[str, Any]
    was_done: bool = False


@dataclass
class Stop:
    """Remembers that a signal asked to stop; a second one stops at once."""

    signal_number: int | None = None
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _frame: object) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


def execute(runs: list[Run], observer: Observer, stop: Stop) -> list[Outcome]:
    """Run what is not done yet and return all outcomes, in order. The runs share a stack key."""
    outcomes: dict[str, Outcome] = {}
    with ExitStack() as held:
        waiting: list[tuple[Run, Record]] = []
        for run in {run.run_id: run for run in runs}.values():
            record = Record(run.folder)
            if not run.force and (result := record.result()):
                outcomes[run.run_id] = Outcome(run, result, was_done=True)
                continue
            if run.force:
                record = Record(run.folder.with_name(f"{run.run_id}.force"))
            held.enter_context(record.lock())
            waiting.append((run, record))
        if waiting:
            for outcome in _execute(waiting, observer, stop):
                outcomes[outcome.run.run_id] = outcome
    return [outcomes[run.run_id] for run in runs]


def build_problem(run: Run) -> Problem:
    """A task knows its data and its loss; the mirror map is the run's choice."""
    problem = run.task.build(run.seed, run.hparams.dtype, run.regularizer, run.hparams.weighting)
    return replace(problem, mirror=run.mirror)


def _execute(waiting: list[tuple[Run, Record]], observer: Observer, stop: Stop) -> Iterator[Outcome]:
    first = waiting[0][0]
    cores = first.threads or os.cpu_count() or 1
    set_threads(cores)
    problem = build_problem(first)
    first.check_clients(problem.data.clients)
    experiment = Experiment(first.task, problem, first.hparams, first.seed, first.make_algorithm)
    smoothness = None
    if first.algorithm.federated:
        smoothness = estimate_smoothness(problem, first.seed, first.hparams.batch_size)
    for run, record in waiting:
        record.save_config(run.as_yaml())
        record.note(run.describe())
        _warn_of_large_steps(run, record, smoothness)
    jobs = [record.checkpoint() or Job() for _, record in waiting]
    observer.on_start([run for run, _ in waiting], first.hparams.rounds)
    # After a kill the jobs of a stack may have checkpoints of different rounds; each round makes its own stack.
    for start in sorted({job.round for job in jobs}):
        members = [i for i, job in enumerate(jobs) if job.round == start]
        stack = [(*waiting[i], jobs[i]) for i in members]
        # Threads belong to the kernels; a second pool of them in BLAS would only get in their way.
        with threadpool_limits(1, user_api="blas"):
            yield from _simulate(experiment, stack, smoothness, observer, stop)


def _simulate(
    experiment: Experiment,
    stack: list[tuple[Run, Record, Job]],
    smoothness: float | None,
    observer: Observer,
    stop: Stop,
) -> Iterator[Outcome]:
    runs, records, jobs = (list(column) for column in zip(*stack, strict=True))
    varying = Jobs(
        np.array([run.hparams.client_lr for run in runs]),
        np.array([run.hparams.server_lr for run in runs]),
        np.array([run.regularizer.parameters for run in runs]),
    )
    simulation = Simulation(experiment, jobs, varying)
    unfinished = dict(enumerate(jobs))
    started = saved = time.monotonic()
    while simulation.advance():
        now = time.monotonic()
        for job in unfinished.values():
            job.seconds += (now - started) / len(unfinished)  # a job's share of the stack's time
        started = now
        for i in [i for i, job in unfinished.items() if job.ended]:
            yield _finish(runs[i], records[i], unfinished.pop(i), experiment.problem, smoothness)
        if unfinished and (stop.signal_number is not None or now - saved > CHECKPOINT_SECONDS):
            simulation.snapshot()
            for i, job in unfinished.items():
                records[i].save_checkpoint(job)
            saved = now
        if unfinished and stop.signal_number is not None:
            raise Interrupted(stop.signal_number)
        observer.on_round(simulation)


def _finish(run: Run, record: Record, job: Job, problem: Problem, smoothness: float | None) -> Outcome:
    details = {
        "run_id": run.run_id,
        "config_hash": run.run_id,
        "task": run.task.name,
        "algo": run.algo.name,
        "main_metric": run.task.main_metric,
        "seed": run.seed,
        "smoothness": smoothness,
        "optimality_gap": _optimality_gap(run, job),
        "versions": {name: version(name) for name in ("fco", "numpy", "scipy", "numba", "hydra-core")},
        "python": sys.version.split()[0],
        "git_revision": _git_revision(),
        "finished_at": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    assert job.model is not None
    run.task.export(problem, job.model, record.folder)
    result = record.finish(job, problem.layout, details)
    if job.diverged is not None:
        record.note(why_diverged(run, result))
    if run.force:
        replace_folder(run.folder, record.folder)
    return Outcome(run, result)


def _warn_of_large_steps(run: Run, record: Record, smoothness: float | None) -> None:
    if smoothness and run.hparams.client_lr > 2 / smoothness:
        message = (
            f"hparams.client_lr={run.hparams.client_lr:g} is above 2/L = {2 / smoothness:.2g} "
            f"(L = {smoothness:.4g}, the largest over sampled batches): this run may diverge"
        )
        record.note(message)
        log.warning(message)


def why_diverged(run: Run, result: dict[str, Any]) -> str:
    """One line that explains a divergence."""
    limit = 2 / result["smoothness"] if result["smoothness"] else None
    line = f"diverged in round {result['diverged_round']} with client_lr {run.hparams.client_lr:g}"
    if limit is None:
        return f"{line}: take a smaller hparams.client_lr"
    if run.hparams.client_lr > limit:
        return f"{line}, which is above 2/L = {limit:.2g}: steps beyond 2/L overshoot; take a smaller hparams.client_lr"
    return f"{line}, although it is below 2/L = {limit:.2g}: take a smaller hparams.server_lr"


def _optimality_gap(run: Run, job: Job) -> float | None:
    """Phi minus the certified optimum's, where a record of that optimum is at hand."""
    wanted = [asdict(run.task), asdict(run.regularizer), asdict(run.mirror), run.seed, run.hparams.weighting]
    for path in run.folder.parents[1].glob("optimum/*/config.yaml"):
        known = OmegaConf.load(path)
        same = [known.task, known.regularizer, known.mirror, known.seed, known.hparams.weighting] == wanted
        if same and (result := Record(path.parent).result()):
            return job.history["objective"][-1] - result["final"]["objective"]
    return None


def _git_revision() -> str | None:
    """The revision of this software, where it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
