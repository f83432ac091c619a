"""The same sweep without a cluster and on Dask clusters of 1, 2 and 4 workers: `python -m benchmarks.cluster`.

Scheduler and workers are separate processes on this machine, with compiled kernels. The least of two turns counts:
in the first one, workers load their code.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.results import Cell, format_cell, save

BIN = Path(sys.executable).parent
SWEEP = ("experiment=lasso_i", "seeds=1", "threads=1")
WORKERS = (1, 2, 4)
TURNS = 2


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """Start a scheduler and workers of one thread each; return the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder))
    commands = [("scheduler", "--host", address, "--dashboard-address", "127.0.0.1:0")]
    commands += [("worker", address, *options)] * workers
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([BIN / "dask", *words], cwd=folder, **quiet) for words in commands]
    try:
        from distributed import Client

        with Client(address, timeout=30) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_of_sweep(folder: Path, *options: str) -> float:
    start = time.perf_counter()
    command = [BIN / "fco-run", "-m", *SWEEP, f"output_dir={folder}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - start


def main() -> None:
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as temporary:
        place, number = Path(temporary), count()

        def least(*options: str) -> float:
            return min(seconds_of_sweep(place / str(next(number)), *options) for _ in range(TURNS))

        def add(name: str, seconds: float) -> None:
            rows.append([name, seconds, alone / seconds])
            print(" | ".join(map(format_cell, rows[-1])), flush=True)

        seconds_of_sweep(place / "warm-up", "profile=smoke")
        alone = least("hydra.launcher.n_jobs=1")
        add("one process, no cluster", alone)
        add("two processes, no cluster", least("hydra.launcher.n_jobs=2"))
        for workers in WORKERS:
            with cluster(place, workers) as address:
                seconds = least("hydra.launcher.backend=dask", f"hydra.launcher.address={address}")
            add(f"Dask, {workers} worker{'s' * (workers > 1)}", seconds)
    columns = [f"`fco-run -m {' '.join(SWEEP)}`", "seconds", "times as fast as one process"]
    save("cluster", "python -m benchmarks.cluster", columns, rows)


if __name__ == "__main__":
    main()
