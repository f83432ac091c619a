"""What grows with what, over orders of magnitude: `python -m benchmarks.scale` rewrites the curves of README.md.

Processor time, for the machine may be shared: of a round, of a sweep of many jobs and of a report on its records.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.cases import BARE
from benchmarks.measure import engine_rounds, milliseconds
from fco_cli.problem.compiled import set_threads
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import Squared
from fco_cli.problem.models import Linear, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- scale -->\n", "<!-- end of scale -->\n"
STORED = 100  # entries of a sparse row
JOBS = (10, 100, 1_000)

Curve = list[tuple[int, float]]


def problem_of(data: ClientData, model: Linear) -> Problem:
    return Problem(data, model, Squared(), all_regularizers()["l1"](strength=0.01))


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
    """A sweep over learning rates of a small lasso, a round each, and a report on what it leaves."""
    task = "task=lasso task.clients=4 task.samples=10 task.dimension=20 task.ones=10 hparams.clients_per_round=4"
    sweeps, reports = [], []
    for jobs in JOBS:
        place = folder / str(jobs)
        values = ",".join(f"{1e-6 * (1 + i):g}" for i in range(jobs))
        run = f"-m {task} hparams.rounds=1 hparams.client_lr={values} output_dir={place}"
        sweeps.append((jobs, _seconds("fco-run", *run.split())))
        reports.append((jobs, _seconds("fco-report", str(place))))
    yield "jobs of a sweep, from the command line to records", "s", sweeps
    yield "records of a report, with its figures and page", "s", reports


def _seconds(command: str, *arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([Path(sys.executable).with_name(command), *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def slope(points: Curve) -> float:
    """Of the last two points, in logarithms: 1 is in proportion, 0 no dependence."""
    (n, before), (m, after) = points[-2:]
    return math.log(after / before) / math.log(m / n)


def main() -> None:
    set_threads(1)
    rows = ["| what grows | cost at its sizes | slope at the end |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for source in (rounds(), commands(Path(folder))):
            for name, unit, points in source:
                costs = ", ".join(f"{size:,}: {cost:.3g} {unit}" for size, cost in points)
                rows.append(f"| {name} | {costs} | {slope(points):.2f} |")
                print(rows[-1], flush=True)
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
