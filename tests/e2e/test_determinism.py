"""Equal bytes on one machine in any environment; nearly equal numbers on machines of other kinds."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.machine_code

COMMAND = str(Path(sys.executable).parent / "fco-run")
LASSO = ["task=lasso", "task.dimension=100", "task.ones=8", "task.clients=20", "task.samples=40"]
RUN = [*LASSO, "hparams.rounds=30", "hparams.client_lr=0.0003"]
PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "OPENBLAS_", "PYTHONHASH"))}


def metrics(folder: Path, *words: str, **surroundings: str) -> bytes:
    command = [COMMAND, *RUN, *words, f"output_dir={folder}"]
    done = subprocess.run(command, env=PLAIN | surroundings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (path,) = folder.rglob("metrics.csv")
    return path.read_bytes()


SAME_MACHINE = {
    "the order of sets": {"PYTHONHASHSEED": "1"},
    "one BLAS thread": {"OPENBLAS_NUM_THREADS": "1"},
    "kernels for one thread": {"NUMBA_NUM_THREADS": "1"},
}
OTHER_MACHINES = {
    "a processor without AVX": {"NUMBA_CPU_NAME": "generic"},
    "BLAS for AVX2": {"OPENBLAS_CORETYPE": "Haswell"},
    "BLAS for SSE": {"OPENBLAS_CORETYPE": "Nehalem"},
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> bytes:
    return metrics(tmp_path_factory.mktemp("usual"), PYTHONHASHSEED="0")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_MACHINE)
def test_the_same_bytes(tmp_path, usual, name):
    assert metrics(tmp_path, **SAME_MACHINE[name]) == usual


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "fedmid", "optimum"])
@pytest.mark.parametrize("name", OTHER_MACHINES)
def test_nearly_the_same_numbers(tmp_path, name, algo):
    """1e-9 relative, the promise; at the optimum the residual, which is rounding error itself, is left out."""
    tables = [
        list(csv.reader(text.decode().splitlines()))
        for text in (
            metrics(tmp_path / "usual", f"algo={algo}"),
            metrics(tmp_path / "other", f"algo={algo}", **OTHER_MACHINES[name]),
        )
    ]
    assert tables[0][0] == tables[1][0]
    kept = [i for i, metric in enumerate(tables[0][0]) if not (algo == "optimum" and metric == "kkt_residual")]
    one, other = (np.array(table[1:], dtype=float)[:, kept] for table in tables)
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
