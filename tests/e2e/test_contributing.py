"""What CONTRIBUTING.md tells a newcomer to write, written and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
SMALL = [
    "task=lasso", "task.dimension=20", "task.ones=5", "task.clients=6", "task.samples=12",
    "hparams.clients_per_round=4",
    "hparams.batch_size=4", "hparams.rounds=5", "hparams.client_lr=0.002",
]  # fmt: skip


@pytest.fixture
def house(tmp_path) -> Path:
    """A copy of the package and its configuration, for strangers to add to."""
    shutil.copytree(REPOSITORY / "fco_cli", tmp_path / "fco_cli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "conf", tmp_path / "fco_cli" / "conf")
    return tmp_path


def block_after(words: str, language: str) -> str:
    """The first block of code in this language after these words."""
    found = re.search(rf"{re.escape(words)}.*?```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    assert found, f"CONTRIBUTING.md has no {language} after {words!r}"
    return found[1]


def fco_run(house: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "fco_cli.commands.run", *SMALL, *arguments]
    environment = os.environ | {"PYTHONPATH": str(house)}
    done = subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.machine_code
def test_a_new_algorithm_is_one_file_and_one_yaml(house):
    (house / "fco_cli/algorithms/inertia.py").write_text(block_after("algorithms/inertia.py", "python"))
    (house / "fco_cli/conf/algo/fedavg_inertia.yaml").write_text(block_after("algo/fedavg_inertia.yaml", "yaml"))
    fco_run(house, "-m", "algo=fedavg_inertia", "algo.inertia=0,0.2,0.4")
    fco_run(house, "algo=fedavg", "hparams.server_lr=0.3")
    objective = {}
    for path in house.glob("outputs/lasso/*/*/result.json"):
        config = (path.parent / "config.yaml").read_text()
        inertia = re.search(r"inertia: ([\d.]+)", config)
        objective[float(inertia[1]) if inertia else "fedavg"] = json.loads(path.read_text())["final"]["objective"]
    assert set(objective) == {0, 0.2, 0.4, "fedavg"}
    assert objective[0] == objective["fedavg"]  # without inertia it is FedAvg
    assert len(set(objective.values())) == 3
    # She edits her algorithm: the old record is not hers any more.
    text = (house / "fco_cli/algorithms/inertia.py").read_text()
    (house / "fco_cli/algorithms/inertia.py").write_text(text.replace("+= options[j]", "+= 2 * options[j]"))
    fco_run(house, "algo=fedavg_inertia", "algo.inertia=0.2")
    assert len(list(house.glob("outputs/lasso/fedavg_inertia/*/result.json"))) == 4


@pytest.mark.slow
@pytest.mark.machine_code
def test_a_new_regularizer_is_one_file_and_one_yaml(house):
    code = block_after("regularizers/cube.py", "python")
    imports = (
        "from __future__ import annotations\n\nfrom dataclasses import dataclass\n\n"
        "from fco_cli.kernels.compiled import kernel\nfrom fco_cli.problem.regularizers.base import Constraint\n\n\n"
    )
    (house / "fco_cli/problem/regularizers/cube.py").write_text(code if "import" in code else imports + code)
    (house / "fco_cli/conf/regularizer/cube.yaml").write_text(block_after("regularizer/cube.yaml", "yaml"))
    fco_run(house, "regularizer=cube", "regularizer.side=0.01")
    (model,) = house.glob("outputs/lasso/feddualavg/*/model.npz")
    import numpy as np

    with np.load(model) as arrays:
        assert np.abs(arrays["weights"]).max() == pytest.approx(0.01)
