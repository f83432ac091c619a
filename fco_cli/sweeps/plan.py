"""Dry run: the estimated cost of a sweep, from its configuration and a few measured rounds."""

from __future__ import annotations

import time

from fco_cli.config import Run
from fco_cli.kernels.compiled import set_threads
from fco_cli.simulation.engine import Job, Simulation
from fco_cli.simulation.execute import bytes_per_job
from fco_cli.simulation.problems import problem_of, setup_of, varying_of
from fco_cli.sweeps.backends import Options, cores
from fco_cli.sweeps.stacks import group_into_stacks

PROBE_ROUNDS = 3


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
        seconds += _seconds(stack.runs)
    lines = [
        f"{len(runs)} runs to do ({done} done already) in {len(stacks)} stacks, {workers} at a time",
        f"at most {largest:.0f} MB of data and state per process, {largest * workers:.0f} MB in total",
        f"about {seconds / workers / 60:.1f} minutes if no run diverges (measured on {PROBE_ROUNDS} rounds per stack)",
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
