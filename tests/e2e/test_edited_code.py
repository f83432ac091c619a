"""Edits of a copy of the package: a new run id, new machine code, and the old ones again after undoing the edit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fco_cli.conf
import numpy as np
import pytest

pytestmark = [pytest.mark.machine_code, pytest.mark.ci]

PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_", "OPENBLAS_"))}
REGISTRY = Path(__file__).with_name("registry_runs.py")

ALGORITHM = """
from __future__ import annotations
from dataclasses import dataclass
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms import ops
from fco_cli.kernels.compiled import kernel
from my_helper import shrink

@dataclass(kw_only=True)
class Mine(FedAvg):
    name: str = "mine"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = ops.copy(received.w)
        for k in range(batches.steps):
            ops.gradient_step(w, w, batches, k, rate)
        ops.assign_difference(message.w, w, received.w)
        shrink(message.w)
"""
HELPER = """
from fco_cli.kernels.compiled import kernel

@kernel
def shrink(w):
    for j in range(w.shape[0]):
        for i in range(w.shape[1]):
            w[j, i] *= 0.5
"""
SCRIPT = """
import sys
from pathlib import Path
from my_algorithm import Mine
from fco_cli.algorithms import all_algorithms
sys.path.insert(0, sys.argv[3])
from registry_runs import Silent, digest
from hydra import compose, initialize_config_module
from fco_cli.config import Run, register
from fco_cli.simulation.process import Stop
from fco_cli.simulation.execute import execute
from dataclasses import replace
import fco_cli
assert fco_cli.__file__.startswith(sys.argv[4]), fco_cli.__file__
register()
with initialize_config_module("fco_cli.conf", version_base="1.3"):
    config = compose("config", overrides=["task=custom", "task.loss=logistic", f"task.path={sys.argv[2]}",
        "algo=fedavg", "hparams.rounds=3", "hparams.client_lr=0.1", "hparams.clients_per_round=3",
        "regularizer=none", "threads=1", f"output_dir={sys.argv[1]}"])
run = replace(Run.of(config), algo=Mine())
(outcome,) = execute([run], Silent(), Stop())
print(run.run_id, digest(run.folder), outcome.was_done)
"""
EDITS = {  # file, text, other text: each changes the numbers
    "loss": ("fco_cli/problem/losses/classification.py", "decay = np.exp(-abs(s))", "decay = np.exp(-1.125 * abs(s))"),
    "model": (
        "fco_cli/problem/models/linear.py",
        "gradient[j, outputs * features + c] += slopes[j, c, i]",
        "gradient[j, outputs * features + c] += 1.125 * slopes[j, c, i]",
    ),
    "aggregation": ("fco_cli/algorithms/rounds.py", "result[k] += factor *", "result[k] += 1.125 * factor *"),
    "preparation": (
        "fco_cli/data/statistics.py",
        "> 1e-12 * np.abs(self.mean), deviation, 1.0",
        "> 1e-12 * np.abs(self.mean), 2 * deviation, 1.0",
    ),
    "helper outside the package": ("my_helper.py", "*= 0.5", "*= 0.25"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The package, an algorithm and its helper outside of it, and a table."""
    folder = tmp_path_factory.mktemp("copy")
    package = Path(fco_cli.__file__).parent
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / "fco_cli", ignore=skip)
    shutil.copytree(
        Path(next(iter(fco_cli.conf.__path__))), folder / "fco_cli" / "conf", dirs_exist_ok=True, ignore=skip
    )
    (folder / "my_algorithm.py").write_text(ALGORITHM)
    (folder / "my_helper.py").write_text(HELPER)
    random = np.random.default_rng(0)
    x = 3 + 2 * random.standard_normal((60, 5))
    np.savez(folder / "own.npz", x=x, y=(x[:, 0] > 3).astype(float), client=np.repeat([0, 1, 2], (10, 20, 30)))
    return folder


def run_copy(folder: Path, output: Path, cache: Path) -> tuple[str, str, str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    places = {
        "NUMBA_NUM_THREADS": "1",
        "PYTHONPATH": str(folder),
        "XDG_CACHE_HOME": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, script, output, folder / "own.npz", REGISTRY.parent, folder]
    done = subprocess.run(list(map(str, command)), env=PLAIN | places, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    run_id, numbers, was_done = done.stdout.split()
    return run_id, numbers, was_done


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_gives_a_new_run_and_new_machine_code(copy, tmp_path, kind):
    file, text, other = EDITS[kind]
    path, cache = copy / file, copy / "cache"
    first = run_copy(copy, tmp_path / "out", cache)
    original = path.read_text()
    assert text in original
    path.write_text(original.replace(text, other))
    try:
        second = run_copy(copy, tmp_path / "out", cache)
        fresh = run_copy(copy, tmp_path / "fresh", tmp_path / "empty")
    finally:
        path.write_text(original)
    assert second[2] == fresh[2] == "False"
    assert second[0] != first[0]
    assert second[1] != first[1]
    assert second[:2] == fresh[:2]  # no machine code of the old text was used
    again = run_copy(copy, tmp_path / "out", cache)
    assert again == (*first[:2], "True")
