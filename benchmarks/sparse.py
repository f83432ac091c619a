"""1,000 clients, 10^6 columns, 10^7 stored entries from a file: `python -m benchmarks.sparse`."""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.cases import composed
from benchmarks.measure import engine_rounds, milliseconds
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
    for clock in (time.process_time, time.perf_counter):
        start = clock()
        run = composed("task=custom", f"task.path={path}", "task.standardize=false")
        problem = problem_of(run)
        print(f"{clock.__name__}: {clock() - start:.2f} s to read {path.stat().st_size / 1e6:.0f} MB")
        rounds = engine_rounds(run.task, problem, 1, 5, clients=10, batch=10, rate=0.1, evaluated=False)
        rounds()  # compiles
        print(f"{clock.__name__}: {milliseconds(rounds, clock):.1f} ms for a round of 10 clients")
        start = clock()
        problem.risk(np.zeros((1, problem.layout.size)))
        print(f"{clock.__name__}: {(clock() - start) * 1e3:.0f} ms for F and its gradient on all rows")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB of memory at the peak")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "sparse.npz")
