"""The same bytes with an empty kernel cache, a filled one and none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .registry_runs import SHARDS

pytestmark = [pytest.mark.machine_code, pytest.mark.ci]

PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "OPENBLAS_"))}
REGISTRY = Path(__file__).with_name("registry_runs.py")
THREADED = ("algorithms", "tasks")  # kernels for one thread compile in a third of the time
COMMAND = str(Path(sys.executable).parent / "fco-run")


def results(folder: Path, shard: str, cache: Path, *options: str) -> dict[str, str]:
    """The digests of all runs of a shard in a new process."""
    command = [sys.executable, str(REGISTRY), str(folder), shard, *options]
    environment = PLAIN | {"XDG_CACHE_HOME": str(cache)}
    if shard not in THREADED:
        environment["NUMBA_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.rsplit(" ", 2)[::2] for line in done.stdout.splitlines())


@pytest.mark.parametrize("shard", SHARDS)
def test_cold_warm_and_uncached_give_the_same_bytes(tmp_path, shard):
    cold = results(tmp_path / "cold", shard, tmp_path / "cache")
    kernels = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.kernel")}
    assert kernels
    assert results(tmp_path / "warm", shard, tmp_path / "cache", "--reversed") == cold
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.kernel")} == kernels
    (tmp_path / "file").write_text("")  # below a regular file nothing can be created
    assert results(tmp_path / "uncached", shard, tmp_path / "file" / "none", "--reversed") == cold


def test_threads_give_the_same_bytes_cold_and_warm(tmp_path):
    words = ["task=lasso", "task.dimension=100", "task.ones=8", "task.clients=20", "task.samples=40"]
    found = set()
    for number in range(3):
        output = tmp_path / str(number)
        command = [COMMAND, *words, "hparams.rounds=30", "hparams.client_lr=0.0003", f"output_dir={output}"]
        environment = PLAIN | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        if number == 2:
            environment |= {"XDG_CACHE_HOME": str(tmp_path / "other"), "NUMBA_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        (path,) = output.rglob("metrics.csv")
        found.add(path.read_bytes())
    assert len(found) == 1
