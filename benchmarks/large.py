"""10,000 clients of 100 x 1,000 numbers, four gigabytes, read by memory map: `python -m benchmarks.large [folder]`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CLIENTS, SAMPLES, FEATURES, ROUNDS = 10_000, 100, 1_000, 200


def write(folder: Path) -> None:
    """Random data with a sparse truth, a hundred clients at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    random, rows = np.random.default_rng(0), CLIENTS * SAMPLES
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(rows, FEATURES))
    y, truth = np.empty(rows, np.float32), (np.arange(FEATURES) < 20).astype(np.float32)
    for low in range(0, rows, 100 * SAMPLES):
        chunk = slice(low, low + 100 * SAMPLES)
        x[chunk] = random.standard_normal((100 * SAMPLES, FEATURES), dtype=np.float32)
        y[chunk] = x[chunk] @ truth + random.standard_normal(100 * SAMPLES, dtype=np.float32)
    x.flush()
    np.save(folder / "y.npy", y)
    np.save(folder / "client.npy", np.char.zfill(np.repeat(np.arange(CLIENTS), SAMPLES).astype(str), 5))


def run(folder: Path) -> None:
    """Train and record the resident memory of the process, without pages of the mapped file."""
    command = [
        str(Path(sys.executable).with_name("fco-run")), "task=custom", f"task.path={folder}", "task.loss=squared",
        "task.standardize=false", "task.holdout=none", "regularizer=l1", "regularizer.strength=0.1",
        "hparams.dtype=float32", "hparams.clients_per_round=100", "hparams.client_lr=0.001", f"hparams.rounds={ROUNDS}",
        f"hparams.eval_every={ROUNDS}", f"output_dir={folder / 'outputs'}", "force=true",
    ]  # fmt: skip
    start, own = time.perf_counter(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            own = max(own, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
        except (OSError, TypeError):
            pass
        time.sleep(0.05)
    if process.returncode:
        sys.exit(process.returncode)
    seconds, size = time.perf_counter() - start, (folder / "x.npy").stat().st_size
    print(
        f"{size / 1e9:.1f} GB of data, {ROUNDS} rounds of 100 clients: {seconds:.1f} s, {own / 1024:.0f} MB of memory"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "clients"
        write(place)
        run(place)
