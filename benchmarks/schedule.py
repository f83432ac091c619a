"""Time that a Dask cluster would take for a recorded sweep: `python -m benchmarks.schedule FOLDER`.

A stack's work goes out in slices of some seconds to whichever worker is free (fco_cli/sweeps/cluster.py), and the one
scheduler handles one message after another. A worker keeps nothing between slices but its kernels and data.
"""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections import Counter, deque
from pathlib import Path

from benchmarks.results import Cell, format_cell, save
from fco_cli.sweeps.cluster import SLICE_SECONDS

TASKS = (200, 1_000, 4_000)  # empty ones, to see what the scheduler and the client take for each
COLUMNS = ["workers", "seconds", "of them at work", "tasks a second"]
WORKERS = (1, 10, 30, 100, 300, 1_000)


def stacks_in(folder: Path) -> tuple[list[float], int, int]:
    """The seconds of every stack, the number of records and their bytes."""
    seconds, size, records = Counter[str](), 0, 0
    for path in folder.rglob("result.json"):
        result = json.loads(path.read_text())
        seconds[result["identity"]["stack"]] += result["seconds"]
        size += sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())
        records += 1
    return list(seconds.values()), records, size


def seconds_of_empty_tasks() -> list[float]:
    """Return the processor time of scheduler and client, which share this process, per task."""
    from distributed import Client, LocalCluster

    found = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        client.gather(client.map(abs, range(50), pure=False))
        for count in TASKS:
            start = time.process_time()
            client.gather(client.map(abs, range(count), pure=False))
            found.append((time.process_time() - start) / count)
    return found


def makespan(stacks: list[float], workers: int, of_a_task: float) -> tuple[float, int]:
    """Seconds until the last slice is back, and the number of slices, where the scheduler takes so long for each."""
    waiting, out, free, scheduler, tasks = deque(stacks), [], workers, 0.0, 0
    while waiting or out:
        while waiting and free:
            left = waiting.popleft()
            scheduler, tasks, free = scheduler + of_a_task, tasks + 1, free - 1
            heapq.heappush(out, (scheduler + min(left, SLICE_SECONDS), max(0.0, left - SLICE_SECONDS)))
        back, left = heapq.heappop(out)
        scheduler, free = max(scheduler, back), free + 1
        if left:
            waiting.appendleft(left)
    return scheduler, tasks


def main(folder: Path) -> None:
    stacks, records, size = stacks_in(folder)
    total = sum(stacks)
    print(f"{records} records in {len(stacks)} stacks, {total:.0f} s, the longest {max(stacks):.0f} s")
    print(f"{size / records / 1e3:.0f} kB a record")
    each = seconds_of_empty_tasks()
    print(
        "an empty task:", ", ".join(f"{one * 1e3:.2f} ms of {count:,}" for one, count in zip(each, TASKS, strict=True))
    )
    rows: list[list[Cell]] = []
    for workers in WORKERS:
        seconds, tasks = makespan(stacks, workers, max(each))
        rows.append([f"{workers:,}", seconds, f"{total / seconds / workers:.0%}", tasks / seconds])
        print(" | ".join(map(format_cell, rows[-1])))
    save("schedule", f"python -m benchmarks.schedule {folder}", COLUMNS, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
