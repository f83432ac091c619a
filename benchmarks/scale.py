"""Cost against size over orders of magnitude: `python -m benchmarks.scale` saves the curves (results.py).

Processor time, for the machine may be shared: of a round, of a sweep of many jobs, of a report on its records and of
the start of a task on a file of many clients. `python -m benchmarks.scale rounds` or `commands` measures one half and
leaves the lines of the other as they are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.cases import BARE
from benchmarks.measure import engine_rounds, milliseconds
from benchmarks.results import Cell, format_cell, save, slope
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers

STORED = 100  # entries of a sparse row
RATES = {1: (1, 1), 10: (10, 1), 100: (10, 10), 1_000: (100, 10), 10_000: (100, 100)}  # jobs: client by server rates

COLUMNS = ["what grows", "unit", "cost at its sizes", "slope at the end"]

Curve = list[tuple[int, float]] | list[tuple[int, float, float]]  # size, cost, and MB where they are measured


def problem_of(data: ClientData, model: Linear) -> Problem:
    return Problem(data, model, Squared(), regularizer=all_regularizers()["l1"](strength=0.01))


def dense(clients: int, rows: int, features: int) -> Problem:
    """Random clients in single precision, all of one size."""
    x = np.random.default_rng(0).standard_normal((clients, rows, features), dtype=np.float32)
    return problem_of(ClientData.of_equal_clients(x, x[:, :, 0].copy()), Linear(features))


def sparse(clients: int, rows: int, features: int) -> Problem:
    """One entry in every hundredth of the columns."""
    random, total, width = np.random.default_rng(0), clients * rows, features // STORED
    columns = random.integers(width, size=(total, STORED), dtype=np.int32) + width * np.arange(STORED, dtype=np.int32)
    values = random.standard_normal((total, STORED), dtype=np.float32)
    x = SparseRows(values.ravel(), columns.ravel(), np.arange(total + 1) * STORED, features)
    offsets = np.arange(clients + 1) * rows
    return problem_of(ClientData(x, values[:, 0].copy(), offsets), SparseLinear(features))


def a_round(problem: Problem, cohort: int, batch: int = 10, epochs: int = 1, jobs: int = 1) -> float:
    """Milliseconds of one thread for a round of all jobs, without evaluation."""
    rounds = engine_rounds(BARE, problem, jobs, 5, clients=cohort, batch=batch, epochs=epochs, evaluated=False)
    rounds()  # compiles
    return jobs * min(milliseconds(rounds, time.process_time, 0.2) for _ in range(3))


def rounds() -> Iterator[tuple[str, str, Curve]]:
    many = dense(10**6, 2, 10)

    def first(clients: int) -> Problem:
        part = ClientData(many.data.x[: 2 * clients], many.data.y[: 2 * clients], many.data.offsets[: clients + 1])
        return problem_of(part, Linear(10))

    yield "clients, 100 of them in a round", "ms", curve((10**p for p in range(2, 7)), lambda n: a_round(first(n), 100))
    yield "cohort, of 10^5 clients", "ms", curve((10, 100, 1_000, 10_000), lambda n: a_round(first(10**5), n))
    yield "features, dense rows", "ms", curve((10**p for p in range(3, 7)), lambda n: a_round(dense(4, 10, n), 4))
    yield (
        "features, 100 stored a row",
        "ms",
        curve((10**p for p in range(3, 7)), lambda n: a_round(sparse(4, 10, n), 4)),
    )
    steps = dense(4, 10, 1_000)
    yield "local steps", "ms", curve((1, 10, 100, 1_000), lambda n: a_round(steps, 4, epochs=n))
    yield "jobs in a stack", "ms", curve((1, 10, 100, 1_000), lambda n: a_round(steps, 4, jobs=n))


def curve(sizes: Iterator[int] | tuple[int, ...], cost: Callable[[int], float]) -> Curve:
    return [(size, cost(size)) for size in sizes]


def commands(folder: Path) -> Iterator[tuple[str, str, Curve]]:
    """A sweep over learning rates of a small lasso, a round each; a report on its records; a file of many clients."""
    task = "task=lasso task.clients=4 task.samples=10 task.dimension=20 task.ones=10 hparams.clients_per_round=4"
    _used("fco-run", *f"-m {task} hparams.rounds=1 output_dir={folder / 'first'}".split())  # compiles
    _started(folder / "first.npz", 100)
    sweeps, reports = [], []
    for jobs, (clients, servers) in RATES.items():
        place = folder / str(jobs)
        rates = f"hparams.client_lr={_values(1e-6, clients)} hparams.server_lr={_values(1e-3, servers)}"
        sweeps.append((jobs, *_used("fco-run", *f"-m {task} hparams.rounds=1 {rates} output_dir={place}".split())))
        if jobs >= 100:
            reports.append((jobs, *_used("fco-report", str(place), "--output", str(folder / "report"))))
    yield "jobs of a sweep, from the command line to records", "s", sweeps
    yield "records of a report, with its figures and page", "s", reports
    yield (
        "clients of `task=custom`, 3 rows each, `task.holdout=rows`, start and a round of 100",
        "s",
        [(clients, *_started(folder / f"{clients}.npz", clients)) for clients in (1_000, 10_000, 100_000)],
    )


def _values(first: float, count: int) -> str:
    return ",".join(f"{first * (1 + i):g}" for i in range(count))


def _started(file: Path, clients: int) -> tuple[float, float]:
    random, rows = np.random.default_rng(0), 3 * clients
    x = random.standard_normal((rows, 20), dtype=np.float32)
    np.savez(file, x=x, y=x[:, 0].copy(), client=np.repeat(np.arange(clients), 3).astype(str))
    task = f"task=custom task.path={file} task.loss=squared task.holdout=rows regularizer=l1 regularizer.strength=0.1"
    run = f"hparams.clients_per_round=100 hparams.client_lr=0.001 hparams.rounds=1 output_dir={file.parent / 'custom'}"
    return _used("fco-run", *task.split(), *run.split())


def _used(command: str, *arguments: str) -> tuple[float, float]:
    """Seconds of processor time, and the MB of its largest process."""
    script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); " + (
        "all = resource.getrusage(resource.RUSAGE_CHILDREN); print(all.ru_utime + all.ru_stime, all.ru_maxrss / 1024)"
    )
    called = [sys.executable, "-c", script, str(Path(sys.executable).with_name(command)), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    said = subprocess.run(called, check=True, capture_output=True, text=True, env=environment).stdout
    seconds, megabytes = map(float, said.split())
    return seconds, megabytes


def main() -> None:
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        halves = {"rounds": rounds, "commands": lambda: commands(Path(folder))}
        for half in sys.argv[1:] or halves:
            for name, unit, points in halves[half]():
                row: list[Cell] = [name, unit, [list(point) for point in points], slope(points)]
                print(" | ".join(map(format_cell, row)), flush=True)
                save("scale", "python -m benchmarks.scale", COLUMNS, [row], only_some=True)


if __name__ == "__main__":
    main()
