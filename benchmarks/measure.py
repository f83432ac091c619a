"""Timing: baseline and engine interleaved in one process, medians; peak memory in processes of their own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.simulation.engine import BATCH_SECONDS, Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams

RUN, NEVER = 500, 10**9  # rounds


@dataclass
class Timing:
    """Milliseconds per job and round of the two, and their ratio."""

    baseline: float
    engine: float

    @property
    def ratio(self) -> float:
        return self.baseline / self.engine


Clock = Callable[[], float]


def milliseconds(work: Callable[[], int], clock: Clock, at_least: float = 1.0) -> float:
    """Per unit of work, over some seconds of it; `work` says how many units it did."""
    time.sleep(0.3)  # what ran before has threads that wait for more work in a busy loop, for a while
    work()
    units, start = 0, clock()
    while clock() - start < at_least:
        units += work()
    return (clock() - start) * 1e3 / units


def interleaved(
    baseline: Callable[[], int], engine: Callable[[], int], repeats: int, clock: Clock = time.perf_counter
) -> Timing:
    """Both in turns, so that a noisy moment of the machine hits both; compilation does not count."""
    engine()
    pairs = [(milliseconds(baseline, clock), milliseconds(engine, clock)) for _ in range(repeats)]
    return Timing(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def engine_rounds(
    task,
    problem,
    jobs: int,
    rounds: int,
    clients: int,
    batch: int,
    epochs: int = 1,
    rate: float = 1e-5,
    evaluated=True,
    name: str = "feddualavg",
) -> Callable[[], int]:  # fmt: skip
    """Simulations of `jobs` jobs that all survive, evaluated every round or never; units are jobs times rounds.

    Those that are evaluated have RUN rounds each, one simulation after another: the longer one is, the more of its
    rounds are evaluated together.
    """
    last, every = (RUN, 1) if evaluated else (NEVER, NEVER)
    hparams = Hparams(
        client_lr=1.0, server_lr=1.0, rounds=last, clients_per_round=clients, batch_size=batch, local_epochs=epochs,
        eval_every=every, dtype=str(problem.dtype),
    )  # fmt: skip
    rates = (rate * np.geomspace(0.1, 1, jobs)).astype(problem.dtype)
    algorithm = all_algorithms()[name]()
    varying = Varying.from_rates(algorithm, problem.regularizer, rates, np.ones(jobs, problem.dtype))
    setup = Setup(task, problem, hparams, 0, algorithm)

    def started() -> Simulation:
        return Simulation(setup, [Job() for _ in range(jobs)], varying)

    simulation = started()

    def work() -> int:
        nonlocal simulation
        done = 0
        with threadpool_limits(1, user_api="blas"):  # to set this takes milliseconds: let there be rounds enough
            while done < rounds:
                before = simulation.round
                if simulation.advance(BATCH_SECONDS):
                    done += simulation.round - before
                    assert len(simulation.running or simulation.finished) == jobs, "one diverged: these would be fewer"
                else:
                    simulation = started()
        return jobs * done

    return work


def peak_memory_mb(*command: str) -> float:
    """Measure a command in a separate process."""
    report = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); " + (
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", report, *command], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def wall_seconds(*command: str, repeats: int = 5) -> float:
    """The median time of a command, start-up included, after one call that may fill caches, also that of bytecode."""
    times, environment = [], {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env=environment)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
