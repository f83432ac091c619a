"""Examples of CONTRIBUTING.md, written to files and run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[2]
TEXT = (REPOSITORY / "CONTRIBUTING.md").read_text()
SMALL = [
    "task=lasso", "task.dimension=20", "task.ones=5", "task.clients=6", "task.samples=12",
    "hparams.clients_per_round=4",
    "hparams.batch_size=4", "hparams.rounds=5", "hparams.client_lr=0.002",
]  # fmt: skip


def block_after(words: str, language: str) -> str:
    """Return the first block of code in this language after these words."""
    found = re.search(rf"{re.escape(words)}.*?```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    assert found, f"CONTRIBUTING.md has no {language} after {words!r}"
    return found[1]


def fco_run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "fco_cli.commands.run", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_plugin(folder: Path, name: str) -> str:
    """Write the file of this name as CONTRIBUTING.md has it; return the argument that loads it."""
    (folder / name).write_text(block_after(f"`{name}`:", "python"))
    return f"plugins=[{name}]"


def test_every_example_is_short():
    """A class has at most 15 lines, not counting imports and blank lines."""
    sections = TEXT.split("## Adding things")[1].split("\n### A new ")[1:]
    assert len(sections) == 8
    for section in sections:
        for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
            lines = [line for line in code.splitlines() if line and not line.startswith(("from ", "import "))]
            assert len(lines) <= 15, section


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_new_algorithm_is_one_file(tmp_path):
    plugin = write_plugin(tmp_path, "pull.py")
    fco_run(tmp_path, "-m", plugin, *SMALL, "algo=fedavg_pull", "algo.pull=0,0.2,0.4", "hparams.server_lr=0.3")
    fco_run(tmp_path, *SMALL, "algo=fedavg", "hparams.server_lr=0.3")
    objective = {}
    for path in tmp_path.glob("outputs/lasso/*/*/result.json"):
        config = (path.parent / "config.yaml").read_text()
        pull = re.search(r"pull: ([\d.]+)", config)
        objective[float(pull[1]) if pull else "fedavg"] = json.loads(path.read_text())["final"]["objective"]
    assert set(objective) == {0, 0.2, 0.4, "fedavg"}
    assert objective[0] == objective["fedavg"]  # without pull it is FedAvg
    assert len(set(objective.values())) == 3


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_method_without_local_steps_is_one_file(tmp_path):
    plugin = write_plugin(tmp_path, "mean_prox.py")
    fco_run(tmp_path, "-m", plugin, *SMALL, "algo=mean_prox", "hparams.client_lr=0.001,0.002", "seeds=2")
    (first, *others) = tmp_path.glob("outputs/lasso/mean_prox/*/metrics.csv")
    assert len(others) == 3
    objectives = [float(row.split(",")[1]) for row in first.read_text().splitlines()[1:]]
    assert sorted(objectives, reverse=True) == objectives


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_new_regularizer_is_one_file(tmp_path):
    fco_run(tmp_path, write_plugin(tmp_path, "cube.py"), *SMALL, "regularizer=cube", "regularizer.side=0.01")
    (model,) = tmp_path.glob("outputs/lasso/feddualavg/*/model.npz")
    with np.load(model) as arrays:
        assert np.abs(arrays["weights"]).max() == pytest.approx(0.01)


@pytest.mark.ci
@pytest.mark.machine_code
def test_a_new_loss_and_a_new_task_are_one_file_each(tmp_path):
    rounds = ["hparams.rounds=3", "hparams.clients_per_round=2"]
    fco_run(tmp_path, write_plugin(tmp_path, "ramp.py"), "task=ramp", "task.clients=4", *rounds)
    rows = [f"{'abc'[k % 3]},{k % 5},{k % 7}" for k in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["client,x,y", *rows]))
    chosen = ["task=custom", "task.path=table.csv", "task.loss=log_cosh", "task.loss_options={sharpness: 2}"]
    fco_run(tmp_path, write_plugin(tmp_path, "log_cosh.py"), *chosen, *rounds)
    assert len(list(tmp_path.glob("outputs/*/*/*/result.json"))) == 2
