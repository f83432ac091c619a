"""1,000 clients, 10^6 columns, 10^7 stored entries from a file: `python -m benchmarks.sparse`."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.cases import composed
from benchmarks.measure import engine_rounds, milliseconds
from benchmarks.results import Cell, format_cell, save
from fco_cli.simulation.problems import problem_of

CLIENTS, ROWS, STORED, FEATURES = 1_000, 100, 100, 10**6


def write(path: Path) -> None:
    """Random entries, one in every hundredth of the columns; the first of a row say its label."""
    random, rows, width = np.random.default_rng(0), CLIENTS * ROWS, FEATURES // STORED
    columns = random.integers(width, size=(rows, STORED), dtype=np.int32) + width * np.arange(STORED, dtype=np.int32)
    data = random.standard_normal((rows, STORED), dtype=np.float32)
    parts = {"data": data.ravel(), "indices": columns.ravel(), "indptr": np.arange(rows + 1, dtype=np.int32) * STORED}
    y, client = (data[:, :5].sum(axis=1) > 0).astype(float), np.repeat(np.arange(CLIENTS), ROWS)
    np.savez(path, **parts, shape=(rows, FEATURES), y=y, client=client)


def main(path: Path) -> None:
    """Rounds as `fco-run task=custom task.standardize=false` has them: batches of 10 in one epoch, float64."""
    write(path)
    names = ("reading the file", "a round of 10 clients", "F and its gradient on all rows")
    seconds = {name: [0.0, 0.0] for name in names}
    for i, clock in enumerate((time.process_time, time.perf_counter)):
        start = clock()
        run = composed("task=custom", f"task.path={path}", "task.standardize=false")
        problem = problem_of(run)
        seconds[names[0]][i] = clock() - start
        rounds = engine_rounds(run.task, problem, 1, 5, clients=10, batch=10, rate=0.1, evaluated=False)
        rounds()  # compiles
        seconds[names[1]][i] = milliseconds(rounds, clock) / 1e3
        start = clock()
        problem.risk(np.zeros((1, problem.layout.size)))
        seconds[names[2]][i] = clock() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows: list[list[Cell]] = [[name, 1e3 * cpu, 1e3 * wall] for name, (cpu, wall) in seconds.items()]
    for row in rows:
        print(" | ".join(map(format_cell, row)))
    print(f"{memory:.0f} MB of memory at the peak, the generator's arrays included")
    columns = [
        f"{path.stat().st_size / 1e6:.0f} MB in the file, {memory:.0f} MB in memory",
        "ms of processor time",
        "ms",
    ]
    save("sparse", "python -m benchmarks.sparse", columns, rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "sparse.npz")
