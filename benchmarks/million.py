"""10^6 clients in one run: `python -m benchmarks.million` measures sparse messages and client memory.

Every client has two rows of ten stored entries, in float32: of 10^6 columns for `feddualavg`, of 1,000 columns for
`scaffold_prox`, whose control variates are in a file (simulation/memory.py).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.cases import BARE
from benchmarks.results import Cell, format_cell, save
from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.kernels.compiled import set_threads
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import Squared
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import FILE

CLIENTS, ROWS, STORED, FEATURES, WEIGHTS = 10**6, 2, 10, 10**6, 1_000
COHORTS, ROUNDS = (100, 1_000, 10_000), 5
COMMAND = "python -m benchmarks.million"


def problem_of(features: int) -> Problem:
    """Return clients with one stored entry in every tenth of the columns of a row."""
    random, total, width = np.random.default_rng(0), CLIENTS * ROWS, features // STORED
    columns = random.integers(width, size=(total, STORED), dtype=np.int32) + width * np.arange(STORED, dtype=np.int32)
    values = random.standard_normal((total, STORED), dtype=np.float32)
    x = SparseRows(values.ravel(), columns.ravel(), np.arange(total + 1) * STORED, features)
    data = ClientData(x, values[:, 0].copy(), np.arange(CLIENTS + 1) * ROWS)
    return Problem(data, SparseLinear(features), Squared(), regularizer=all_regularizers()["l1"](strength=0.01))


def simulation(problem: Problem, name: str, cohort: int, folder: Path) -> Simulation:
    """Return a run of one job that is never evaluated."""
    hparams = Hparams(1.0, 1.0, 10**9, cohort, 10, local_epochs=1, eval_every=10**9, dtype=str(problem.dtype))
    algorithm = all_algorithms()[name]()
    rate, one = np.full(1, 1e-5, problem.dtype), np.ones(1, problem.dtype)
    varying = Varying.from_rates(algorithm, problem.regularizer, rate, one)
    return Simulation(Setup(BARE, problem, hparams, 0, algorithm), [Job()], varying, [folder])


def measure(name: str, cohort: int) -> list[Cell]:
    """Return cohort, milliseconds of processor time of a round, bytes per client up, MB in memory, bytes of files."""
    set_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = simulation(problem_of(FEATURES if name == "feddualavg" else WEIGHTS), name, cohort, Path(folder))
        run.advance()  # compiles
        start, before = time.process_time(), _io()
        for _ in range(ROUNDS):
            run.advance()
        seconds = (time.process_time() - start) / ROUNDS
        read, written = ((after - first) / ROUNDS for after, first in zip(_io(), before, strict=True))
        file = Path(folder) / FILE
        on_disk = file.stat().st_blocks * 512 / 1e6 if file.exists() else 0.0
        up = int(run.counters[2, 0]) / run.round / cohort
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [f"{name}, {cohort:,} clients", seconds * 1e3, up, memory, read / 1e6, written / 1e6, on_disk]


def _io() -> tuple[int, int]:
    """Return the bytes that this process has read and written."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def main() -> None:
    if len(sys.argv) > 1:
        name, cohort = sys.argv[1:]
        print(*measure(name, int(cohort))[1:])
        return
    rows: list[list[Cell]] = []
    for name in ("feddualavg", "scaffold_prox"):
        for cohort in COHORTS:  # in a process each: the peak of its memory is measured
            command = [sys.executable, "-m", "benchmarks.million", name, str(cohort)]
            done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append([f"{name}, {cohort:,} clients", *map(float, done.split())])
            print(" | ".join(map(format_cell, rows[-1])), flush=True)
    columns = [
        "a round of",
        "ms",
        "bytes up a client",
        "MB in memory",
        "MB read",
        "MB written",
        "MB on disk in the end",
    ]
    save("million", COMMAND, columns, rows)


if __name__ == "__main__":
    main()
