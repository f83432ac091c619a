"""Execution of a stack of runs: checkpoints, simulation, records."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from fco_cli.algorithms.arrays import slot_count
from fco_cli.algorithms.protocol import Federated
from fco_cli.client_rate import relative
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import retry_after_losses
from fco_cli.simulation.engine import BATCH_SECONDS, Simulation
from fco_cli.simulation.evaluate import FEW_DIGITS, Verdict, evaluate_test, judge
from fco_cli.simulation.extend import final_job, is_extendable, save_final_state, shorter_run
from fco_cli.simulation.jobs import Job, Setup
from fco_cli.simulation.memory import DamagedMemory
from fco_cli.simulation.problems import (
    Run,
    bytes_per_job,
    checked_problem_of,
    client_lr_of,
    setup_of,
    smoothness_for,
    varying_of,
)
from fco_cli.simulation.process import Stop, Stopwatch, software
from fco_cli.simulation.record import Record, finite, replace_folder
from fco_cli.simulation.smoothness import can_diverge, larger_server_lr, warning_of_large_steps, why_diverged

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 5.0
WAIT_SECONDS = 0.2
PAUSED = "paused"  # status of an outcome without a record: the run has a checkpoint at the round `pause_at`


@dataclass
class Outcome:
    """Result of one run."""

    run: Run
    result: dict[str, Any]
    was_done: bool = False  # True if the result existed before


class Observer(Protocol):
    """Observer of a stack."""

    def on_start(self, runs: Sequence[Run], rounds: int) -> None: ...

    def on_round(self, simulation: Simulation) -> None: ...

    def on_outcome(self, outcome: Outcome) -> None: ...


def execute(runs: Sequence[Run], observer: Observer, stop: Stop, memory_mb: int = 512) -> list[Outcome]:
    """Run the unfinished runs of one stack and return the outcomes of all, in order.

    Runs that are locked by another process are awaited at the end, and run here if that process died.
    """
    outcomes: dict[str, Outcome] = {}
    busy: list[Run] = []
    with ExitStack() as locks:
        waiting: list[tuple[Run, Record]] = []
        for run in {run.run_id: run for run in runs}.values():
            record = record_of(run)
            if not run.force and (result := record.result()):
                with suppress(OSError):  # a finished record may be on a read-only disk
                    record.drop_checkpoint()  # the process may have been killed right after writing the result
                outcomes[run.run_id] = Outcome(run, result, was_done=True)
            elif not locks.enter_context(record.lock(wait=False)):
                busy.append(run)
            elif not run.force and (result := record.result()):  # finished by another process meanwhile
                outcomes[run.run_id] = Outcome(run, result, was_done=True)
            else:
                waiting.append((run, record))

        def run_remaining() -> None:
            remaining = [pair for pair in waiting if pair[0].run_id not in outcomes]
            for outcome in _execute(remaining, observer, stop, memory_mb):
                outcomes[outcome.run.run_id] = outcome

        if waiting:
            retry_after_losses(run_remaining, stop)
    for run in busy:
        log.info("%s: another process is working on this run; waiting for it", run.folder)
        _wait_for(record_of(run), stop)
        (outcomes[run.run_id],) = execute([run], observer, stop, memory_mb)
    return [outcomes[run.run_id] for run in runs]


def record_of(run: Run) -> Record:
    """Return the record that a run writes; a forced run replaces its old record when it is complete."""
    return Record(run.folder.with_name(f"{run.run_id}.force") if run.force else run.folder)


def code_of(run: Run) -> str:
    """Return the versions that a checkpoint must match: the code, NumPy and Numba."""
    versions = software()["versions"]
    return f"{run.digests['code']}, numpy {versions['numpy']}, numba {versions['numba']}"


def _wait_for(record: Record, stop: Stop) -> None:
    """Wait until no other process holds the record, polling so that signals are handled."""
    while True:
        with record.lock(wait=False) as acquired:
            if acquired:
                return
        stop.check()
        time.sleep(WAIT_SECONDS)


def problem_and_smoothness(run: Run) -> tuple[Problem, float | None]:
    """Return the problem, which is cached, and the estimate of L.

    Data are generated and summed in C without the interpreter lock, while this thread loads Numba and its kernels.
    """
    # The limit is set here because it holds for the whole process: either thread would lift it for the other.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(2) as pool:
        future = pool.submit(checked_problem_of, run)
        set_threads(run.threads or (1 if run.is_remote else os.cpu_count()) or 1)  # sites compute themselves
        problem = future.result()
        pool.submit(lambda: problem.risk)
        pool.submit(lambda: problem.validation)
        return problem, smoothness_for(run, problem)


def _execute(waiting: list[tuple[Run, Record]], observer: Observer, stop: Stop, memory_mb: int) -> Iterator[Outcome]:
    first = waiting[0][0]
    first.check_code()
    problem, smoothness = problem_and_smoothness(first)
    setup = setup_of(first, problem)
    jobs = _load_jobs(setup, waiting)
    for (run, record), job in zip(waiting, jobs, strict=True):
        if job.round == 0:
            _log_start(run, record, smoothness if can_diverge(problem) else None, is_single=len(waiting) == 1)
        else:
            if not (record.folder / "config.yaml").exists():  # the job continues another, shorter run
                record.save_config(run.yaml)
            record.note(f"continued from round {job.round}")
    observer.on_start([run for run, _ in waiting], first.hparams.last_round)
    size = max_jobs_per_round(first, problem, memory_mb * 2**20)
    # After a kill the jobs of a stack may have checkpoints of different rounds; jobs of the same round form a stack.
    pause = first.pause_at
    is_over = [pause is not None and job.round >= pause for job in jobs]
    for (run, _), job, over in zip(waiting, jobs, is_over, strict=True):
        if over:
            yield _paused(run, job, observer)
    for done in sorted({job.round for job, over in zip(jobs, is_over, strict=True) if not over}):
        members = [(*pair, job) for pair, job in zip(waiting, jobs, strict=True) if job.round == done]
        for low in range(0, len(members), size):
            # The kernels use all threads; a second pool in BLAS would compete with them.
            with threadpool_limits(1, user_api="blas"):
                yield from _simulate(setup, members[low : low + size], smoothness, observer, stop)


def _load_jobs(setup: Setup, waiting: list[tuple[Run, Record]]) -> list[Job]:
    """Return the jobs, from their checkpoints or the final states of shorter runs, if these exist.

    A checkpoint that does not match its run is renamed.
    """
    jobs = [record.checkpoint(code_of(run)) for run, record in waiting]
    shorter = [None if job or run.force else shorter_run(run) for job, (run, _) in zip(jobs, waiting, strict=True)]
    if any(jobs) or any(shorter):
        fresh = Simulation(setup, [Job()], varying_of([waiting[0][0]]))
        for i, (run, record) in enumerate(waiting):
            job = jobs[i]
            if job is not None and (reason := fresh.checkpoint_mismatch(job)):
                record.refuse_checkpoint(reason)
                jobs[i] = None
            elif (folder := shorter[i]) is not None:
                job = final_job(folder, run, code_of(run))
                jobs[i] = None if job is None or fresh.checkpoint_mismatch(job) else job
    return [job or Job() for job in jobs]


def _log_start(run: Run, record: Record, smoothness: float | None, is_single: bool) -> None:
    """Save the configuration and log the run; the rate and warnings also go to the terminal for a single run."""
    record.save_config(run.yaml)
    record.note(run.describe())
    if "client_lr" in run.algo.uses and (times := relative(run.hparams.client_lr)) is not None:
        line = f"client_lr {run.hparams.client_lr}: {client_lr_of(run):g}, {times:g}/L"
        record.note(line)
        if is_single:
            log.info(line)
        smoothness = smoothness and times / client_lr_of(run)  # the L of the rate
    if warning := warning_of_large_steps(client_lr_of(run), smoothness, run.algo.uses_mean_gradient):
        record.note(warning)
        if is_single:
            log.warning(warning)


def max_jobs_per_round(run: Run, problem: Problem, memory: int) -> int:
    """Return the largest number of jobs that fit into memory and, for remote clients, into one message."""
    most = max(1, memory // bytes_per_job(run, problem))
    if isinstance(problem.data, RemoteRows):
        method = run.method
        assert isinstance(method, Federated)
        size = problem.layout.size
        vectors = slot_count(method.broadcast, size), slot_count(method.sent, size)
        most = min(most, problem.data.max_jobs_per_round(*vectors, size))
    return most


def _simulate(
    setup: Setup, stack: list[tuple[Run, Record, Job]], smoothness: float | None, observer: Observer, stop: Stop
) -> Iterator[Outcome]:
    runs, records, jobs = (list(column) for column in zip(*stack, strict=True))
    simulation, jobs = _create_simulation(setup, runs, records, jobs)
    for run in runs:
        run.check_metrics(jobs[0].history)
    unfinished = dict(enumerate(jobs))
    simulation.pause_at = runs[0].pause_at or simulation.rounds
    watch, saved = Stopwatch(), time.monotonic()
    while simulation.advance(BATCH_SECONDS):
        seconds = watch.lap()
        for job in unfinished.values():
            job.seconds += seconds / len(unfinished)  # a job's share of the stack's time
        for i in [i for i, job in unfinished.items() if job.ended]:
            outcome = _finish(runs[i], records[i], unfinished.pop(i), simulation, smoothness)
            observer.on_outcome(outcome)
            yield outcome
        is_paused = simulation.round == simulation.pause_at  # or at the end: then no job is unfinished
        if unfinished and (is_paused or stop.requested or time.monotonic() - saved > CHECKPOINT_SECONDS):
            simulation.snapshot()
            for i, job in unfinished.items():
                records[i].save_checkpoint(job, code_of(runs[i]))
            simulation.confirm_saved()
            saved = time.monotonic()
            stop.check()
        observer.on_round(simulation)
    for i, job in unfinished.items():
        records[i].note(f"paused at round {job.round}; the same run continues from there")
        yield _paused(runs[i], job, observer)


def _paused(run: Run, job: Job, observer: Observer) -> Outcome:
    """Return the outcome of a run that has reached the round at which it pauses, with the metrics of that round."""
    assert run.pause_at is not None
    row = job.history["round"].index(run.pause_at)
    final = {name: values[row] for name, values in job.history.items() if name != "round"}
    outcome = Outcome(run, {"status": PAUSED, "rounds": run.pause_at, "final": finite(final)})
    observer.on_outcome(outcome)
    return outcome


def _create_simulation(
    setup: Setup, runs: list[Run], records: list[Record], jobs: list[Job]
) -> tuple[Simulation, list[Job]]:
    """Return the simulation and its jobs; they start over from round 0 if the clients' memory is damaged."""
    folders = [record.folder for record in records]
    try:
        return Simulation(setup, jobs, varying_of(runs), folders), jobs
    except DamagedMemory as problem:
        log.warning("%s: %s; the stack starts over", folders[0], problem)
        jobs = [Job() for _ in runs]
        return Simulation(setup, jobs, varying_of(runs), folders), jobs


def _verdict(run: Run, job: Job, simulation: Simulation, smoothness: float | None) -> Verdict | None:
    """Return the verdict on a run's convergence; None if it diverged, has several models or does not iterate."""
    if job.diverged is not None or job.model is None or job.model.ndim > 1:
        return None
    if run.algo.one_shot and not simulation.algorithm.minimizes_objective:
        return None
    faster = None
    if simulation.sampler is not None and "server_lr" in run.algo.uses and not run.algo.varying_options():
        steps = simulation.sampler.mean_steps
        faster = larger_server_lr(run.hparams.server_lr, client_lr_of(run) * steps, smoothness)
    tolerance = math.inf if run.algo.certifies else run.hparams.tolerance
    certified = job.certified or run.algo.certifies
    verdict = judge(
        simulation.setup.problem, run.regularizer.numbers, tolerance, job.model, job.history, faster, certified
    )
    return replace(verdict, advice=FEW_DIGITS) if run.algo.one_shot and not verdict.converged else verdict


def _software(run: Run) -> dict[str, Any]:
    """Return the versions of the software, and the digests of the files that were loaded for the run by path."""
    own = software(run.plugins)
    files = own.get("plugins", {}) | run.task.model.files()
    return own | {"versions": own["versions"] | run.task.model.versions()} | ({"plugins": files} if files else {})


def _finish(run: Run, record: Record, job: Job, simulation: Simulation, smoothness: float | None) -> Outcome:
    assert job.model is not None
    problem, verdict = simulation.setup.problem, _verdict(run, job, simulation, smoothness)
    updates = simulation.update_weights(job)
    if verdict is not None and updates is not None and updates.biased and not verdict.converged:
        verdict = replace(verdict, advice=f"the updates weigh clients differently from the objective ({updates.line})")
    details = {
        "run_id": run.run_id,
        "identity": run.digests,
        "task": run.task.name,
        "algo": run.algo.name,
        "transform": run.method.transform.name,
        "federated": run.algo.federated,
        "uses": sorted(run.algo.uses),
        "main_metric": run.task.main_metric,
        "seed": run.seed,
        "test": finite(evaluate_test(run.task, problem, job.model)),
        "client_lr": client_lr_of(run) if "client_lr" in run.algo.uses else None,
        "smoothness": smoothness,
        **({"weighting": run.hparams.weighting} if "weighting" in run.algo.uses else {}),
        "convergence": None if verdict is None else verdict.as_json(),
        **({} if updates is None else {"updates": asdict(updates)}),
        **_software(run),
        "finished_at": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    run.task.export(problem, job.model, record.folder)
    if is_extendable(run) and simulation.fill_final_state(job):
        save_final_state(record, job, run, code_of(run))
    result = record.finish(job, problem.layout, details, simulation.personal_models(job))
    if job.diverged is not None:
        record.note(why_diverged(result))
    for line in (None if verdict is None else verdict.line, None if updates is None else updates.line):
        if line is not None:
            record.note(line)
    if run.force:
        replace_folder(run.folder, record.folder)
    return Outcome(run, result)
