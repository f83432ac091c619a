"""A fused sweep against the same runs one after another: `python -m benchmarks.sweep`.

Hydra's basic launcher is timed on a sample of surviving and of diverging runs, twice as many the second time: the
difference is what the runs take, the rest is start-up, and the whole is extrapolated from the two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Cell, format_cell, save

ALGORITHMS = "algo=feddualavg,feddualavg_osp,fedmid,fedmid_osp"
SURVIVING = ("hparams.client_lr=0.001 hparams.server_lr=1", "hparams.client_lr=0.001 hparams.server_lr=0.1,1")
DIVERGING = ("hparams.client_lr=0.1 hparams.server_lr=1", "hparams.client_lr=0.01,0.1 hparams.server_lr=1")


def sweep(folder: Path, *options: str) -> float:
    """Seconds of `fco-run -m experiment=lasso_i seeds=1`."""
    fco_run, place = Path(sys.executable).with_name("fco-run"), f"output_dir={folder}"
    command = [fco_run, "-m", "experiment=lasso_i", "seeds=1", place, *options]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        sweep(place / "warm-up", "profile=smoke")
        fused = sweep(place / "fused")
        results = [json.loads(path.read_text()) for path in (place / "fused").rglob("result.json")]
        diverged = sum(result["status"] == "diverged" for result in results)
        surviving = len(results) - diverged - 1  # and the optimum
        basic = ("hydra/launcher=basic", ALGORITHMS)
        few, more = (sweep(place / f"s{i}", *basic, *sample.split()) for i, sample in enumerate(SURVIVING))
        few_diverging, more_diverging = (
            sweep(place / f"d{i}", *basic, *sample.split()) for i, sample in enumerate(DIVERGING)
        )
        one, one_diverging, start_up = (more - few) / 4, (more_diverging - few_diverging) / 4, 2 * few - more
        total = start_up + surviving * one + diverged * one_diverging
        print(f"{surviving} runs survive, {diverged} diverge; the ratio is {total / fused:.1f}")
    rows: list[list[Cell]] = [
        ["fused, everything", fused],
        ["basic, a surviving run", one],
        ["basic, a diverging run", one_diverging],
        ["basic, start-up", start_up],
        ["basic, all of them", total],
    ]
    for row in rows:
        print(" | ".join(map(format_cell, row)))
    columns = [f"{surviving + diverged} federated runs and the optimum", "seconds"]
    save("sweep", "python -m benchmarks.sweep", columns, rows)


if __name__ == "__main__":
    main()
