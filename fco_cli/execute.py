"""From runs to records: everything that happens to a stack of runs between its configuration and its results."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


@dataclass
class Outcome:
    """How one run ended: its result, and whether it was there already."""

    run: Run
    result: dict[str, Any]
    was_done: bool = False


class Observer(Protocol):
    """Someone who watches a stack."""

    def on_start(self, runs: list[Run], rounds: int) -> None: ...

    def on_round(self, simulation: Simulation) -> None: ...

    def on_outcome(self, outcome: Outcome) -> None: ...


@dataclass
class Stop:
    """Remembers that someone asked to stop: by a signal to this process, or by a file that another process wrote.

    A second signal stops at once.
    """

    flag: Path | None = None
    signal_number: int | None = None
    _previous: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python refuses to set handlers
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
        if self.flag is not None:
            self.flag.write_text(str(number))

    @property
    def requested(self) -> bool:
        if self.signal_number is None and self.flag is not None and self.flag.exists():
            self.signal_number = int(self.flag.read_text() or signal.SIGTERM)
        return self.signal_number is not None

    def check(self) -> None:
        if self.requested:
            assert self.signal_number is not None
            raise Interrupted(self.signal_number)


def execute(runs: list[Run], observer: Observer, stop: Stop, memory_mb: int = 512) -> list[Outcome]:
    """Run what is not done yet and return all outcomes, in order. The runs share a stack key.

    Runs on which another process is working are waited for at the end; if it died, they are run here.
    """
    outcomes: dict[str, Outcome] = {}
    busy: list[Run] = []
    with ExitStack() as held:
        waiting: list[tuple[Run, Record]] = []
        for run in {run.run_id: run for run in runs}.values():
            record = Record(run.folder.with_name(f"{run.run_id}.force") if run.force else run.folder)
            if not run.force and (result := record.result()):
                outcomes[run.run_id] = Outcome(run, result, was_done=True)
            elif not held.enter_context(record.lock(wait=False)):
                busy.append(run)
            elif not run.force and (result := record.result()):  # done by another process just now
                outcomes[run.run_id] = Outcome(run, result, was_done=True)
            else:
                waiting.append((run, record))
        if waiting:
            outcomes |= {outcome.run.run_id: outcome for outcome in _execute(waiting, observer, stop, memory_mb)}
    for run in busy:
        log.info("%s: another process is working on this run; waiting for it", run.folder)
        with Record(run.folder).lock(wait=True):
            pass
        (outcomes[run.run_id],) = execute([run], observer, stop, memory_mb)
    return [outcomes[run.run_id] for run in runs]


class _Recipe:
    """How to build a run's problem; equal for runs on the same data with the same kind of regularizer."""

    def __init__(self, run: Run) -> None:
        self.run = run
        kinds = (run.regularizer.kind, run.mirror)
        self.key = repr((run.task, run.seed, kinds, run.hparams.dtype, run.hparams.weighting))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recipe) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=1)  # stacks in a row mostly share their data
def _built(recipe: _Recipe) -> Problem:
    run = recipe.run
    problem = run.task.build(run.seed, run.hparams.dtype, run.regularizer, run.hparams.weighting)
    return replace(problem, mirror=run.mirror)  # a task knows its data and its loss; the mirror map is the run's choice


def problem_of(run: Run) -> Problem:
    return _built(_Recipe(run))


def _prepare(run: Run) -> tuple[Problem, float | None]:
    """The problem and the estimate of L.

    Data are drawn and summed up in C, outside the interpreter, which loads Numba and its kernels in the meantime.
    """
    with ThreadPoolExecutor(1) as beside:
        building = beside.submit(problem_of, run)
        set_threads(run.threads or os.cpu_count() or 1)
        problem = building.result()
        run.check_clients(problem.data.clients)
        beside.submit(lambda: problem.risk)
        smoothness = None
        if run.algorithm.federated:
            smoothness = estimate_smoothness(problem, run.seed, run.hparams.batch_size)
    return problem, smoothness


def _execute(waiting: list[tuple[Run, Record]], observer: Observer, stop: Stop, memory_mb: int) -> Iterator[Outcome]:
    first = waiting[0][0]
    problem, smoothness = _prepare(first)
    experiment = Experiment(first.task, problem, first.hparams, first.seed, first.make_algorithm, first.record_clients)
    for run, record in waiting:
        record.save_config(run.yaml)
        record.note(run.describe())
        if warning := _warning_of_large_steps(run, smoothness):
            record.note(warning)
            if len(waiting) == 1:
                log.warning(warning)
    jobs = [record.checkpoint() or Job() for _, record in waiting]
    observer.on_start([run for run, _ in waiting], first.hparams.rounds)
    size = max(1, int(memory_mb * 2**20 / bytes_per_job(first, problem)))
    # After a kill the jobs of a stack may have checkpoints of different rounds; each round makes its own stack.
    for start in sorted({job.round for job in jobs}):
        members = [(*pair, job) for pair, job in zip(waiting, jobs, strict=True) if job.round == start]
        for low in range(0, len(members), size):
            # Threads belong to the kernels; a second pool of them in BLAS would only get in their way.
            with threadpool_limits(1, user_api="blas"):
                yield from _simulate(experiment, members[low : low + size], smoothness, observer, stop)


def bytes_per_job(run: Run, problem: Problem) -> int:
    """What a job adds to its stack: server states and temporaries, and a message per client of the round."""
    vectors = 8
    if run.algorithm.federated:
        vectors += run.hparams.clients_per_round
    elif run.algorithm.name == "local":
        vectors *= problem.data.clients
    return vectors * problem.layout.size * problem.dtype.itemsize


def _simulate(
    experiment: Experiment,
    stack: list[tuple[Run, Record, Job]],
    smoothness: float | None,
    observer: Observer,
    stop: Stop,
) -> Iterator[Outcome]:
    runs, records, jobs = (list(column) for column in zip(*stack, strict=True))
    simulation = Simulation(experiment, jobs, varying_of(runs))
    unfinished = dict(enumerate(jobs))
    before = saved = time.monotonic()
    while simulation.advance():
        now = time.monotonic()
        for job in unfinished.values():
            job.seconds += (now - before) / len(unfinished)  # a job's share of the stack's time
        before = now
        for i in [i for i, job in unfinished.items() if job.ended]:
            outcome = _finish(runs[i], records[i], unfinished.pop(i), experiment.problem, smoothness)
            observer.on_outcome(outcome)
            yield outcome
        if unfinished and (stop.requested or now - saved > CHECKPOINT_SECONDS):
            simulation.snapshot()
            for i, job in unfinished.items():
                records[i].save_checkpoint(job)
            saved = time.monotonic()
            stop.check()
        observer.on_round(simulation)


def varying_of(runs: list[Run]) -> Jobs:
    """What differs between the runs of a stack, as vectors over the job axis."""
    dtype = runs[0].hparams.dtype
    return Jobs(
        np.array([run.hparams.client_lr for run in runs], dtype),
        np.array([run.hparams.server_lr for run in runs], dtype),
        np.array([run.regularizer.parameters for run in runs]),
    )


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
        **_software(),
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


def _warning_of_large_steps(run: Run, smoothness: float | None) -> str | None:
    if smoothness is None or run.hparams.client_lr <= 2 / smoothness:
        return None
    return (
        f"hparams.client_lr={run.hparams.client_lr:g} is above 2/L = {2 / smoothness:.2g} "
        f"(L = {smoothness:.4g}, the largest over sampled batches): this run may diverge"
    )


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
            gap = job.history["objective"][-1] - result["final"]["objective"]
            return gap if np.isfinite(gap) else None  # JSON has no infinity
    return None


@functools.cache
def _software() -> dict[str, Any]:
    """The versions of what computed a result, as they were when this process started to."""
    return {
        "versions": {name: version(name) for name in ("fco-cli", "numpy", "scipy", "numba", "hydra-core")},
        "python": sys.version.split()[0],
        "git_revision": _git_revision(),
    }


def _git_revision() -> str | None:
    """The revision of this software, where it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
