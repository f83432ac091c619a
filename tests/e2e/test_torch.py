"""Runs with model=torch: records, sparse convolutions, stacks, interruptions, tasks of images, late imports."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fco_cli.config import Run
from fco_cli.config.compose import compose
from fco_cli.errors import Interrupted
from fco_cli.simulation.execute import execute
from fco_cli.simulation.process import Stop

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_net.py"
TASK = ["task=digits", "task.clients=6", "hparams.clients_per_round=3", "hparams.local_epochs=1", "hparams.rounds=3"]
NET = ["model=torch", "model.module=my_net.py:Net", "model.input_shape=[1,8,8]", "model.options={channels: 4}"]
SPARSE = [
    "algo=fedmid",
    "hparams.client_lr=0.1",
    "hparams.server_lr=1",
    "regularizer=blockwise",
    "regularizer.blocks={conv*: {name: group_lasso, strength: 0.01, group_size: 0}, "
    "fc.weight: {name: nuclear, strength: 0.02}}",
]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra `torch`)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a link to the example: a process loads one file of a name."""
    (tmp_path / "my_net.py").symlink_to(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(folder):
    return sorted(path.parent for path in folder.glob("*/*/*/result.json"))


def model_of(record):
    with zipfile.ZipFile(record / "model.npz") as file:  # without the times of its members
        return {name: file.read(name) for name in file.namelist()}


@needs_torch
def test_a_convolutional_network_trains_and_its_channels_and_singular_values_become_zero(here, folder):
    text = here(*TASK, *NET, *SPARSE)
    assert "density" in text.out
    (record,) = records(folder / "outputs")
    result = json.loads((record / "result.json").read_text())
    assert result["versions"]["torch"]
    assert result["plugins"] == {str(folder / "my_net.py"): hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()}
    model = dict(np.load(record / "model.npz"))
    assert {name: block.shape for name, block in model.items()} == {
        "conv1.weight": (4, 1, 3, 3), "conv1.bias": (4,), "conv2.weight": (4, 4, 3, 3), "conv2.bias": (4,),
        "fc.weight": (10, 16), "fc.bias": (10,),
    }  # fmt: skip
    norms = np.linalg.norm(model["conv1.weight"].reshape(4, -1), axis=1)
    assert 0 < (norms == 0).sum() < 4, "some output channels are zero, others are not"
    assert np.linalg.matrix_rank(model["fc.weight"], tol=1e-5) < 10
    history = (record / "metrics.csv").read_text().splitlines()
    names, first, *_, last = (line.split(",") for line in history)
    at = names.index("objective")
    assert float(last[at]) < float(first[at])
    here(*TASK, *NET, *SPARSE)
    assert records(folder / "outputs") == [record]  # the same run


@needs_torch
def test_the_module_of_the_tutorial_has_a_certified_optimum(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "tutorials" / "own_method.md").read_text(encoding="utf-8")
    (content,) = re.findall(r"this as `my_net.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "tutorial_net.py").write_text(content)  # a process loads one file of a name
    net = ["model=torch", "model.module=tutorial_net.py:Net"]
    here("task=digits", "task.clients=6", "task.radius=1", "algo=optimum", *net)
    (record,) = records(tmp_path / "outputs")
    assert json.loads((record / "result.json").read_text())["convergence"]["converged"] is True


@needs_torch
def test_a_run_has_the_same_bytes_alone_and_in_a_sweep_of_two_processes(here, folder):
    sweep = ["algo=feddualavg,fedmid", "hparams.client_lr=0.03,0.1", "hydra.launcher.n_jobs=2"]
    here("-m", *TASK, *NET, *sweep, "output_dir=together")
    here(*TASK, *NET, "algo=feddualavg", "hparams.client_lr=0.1", "output_dir=alone")
    (alone,) = records(folder / "alone")
    assert len(records(folder / "together")) == 4
    beside = folder / "together" / alone.relative_to(folder / "alone")
    assert (beside / "metrics.csv").read_bytes() == (alone / "metrics.csv").read_bytes()
    assert model_of(beside) == model_of(alone)


@needs_torch
def test_an_interrupted_run_resumes_with_the_same_bytes(here, folder):
    class Interrupting:
        """Observer that stops the run after a few rounds."""

        def __init__(self):
            self.stop, self.rounds = Stop(), []

        def on_start(self, runs, rounds):
            self.rounds.append(rounds)

        def on_round(self, simulation):
            self.rounds.append(simulation.round)
            self.stop.signal_number = signal.SIGTERM

        def on_outcome(self, outcome):
            raise AssertionError("the run was not interrupted")

    options = [*TASK, *NET, "algo=scaffold_prox", "hparams.client_lr=0.1", "hparams.rounds=8"]
    observer, run = Interrupting(), Run.of(compose([*options, "output_dir=interrupted"]))
    with pytest.raises(Interrupted):
        execute([run], observer, observer.stop)
    assert (run.folder / "checkpoint.npz").is_file()
    here(*options, "output_dir=interrupted")
    here(*options, "output_dir=whole")
    assert "continued from round" in (run.folder / "run.log").read_text()
    (whole,) = records(folder / "whole")
    assert (run.folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert model_of(run.folder) == model_of(whole)


@needs_torch
def test_wrong_settings_are_one_line_with_exit_code_2(here, folder):
    for overrides, reason in [
        (["model.module=absent.py:Net"], "model.module: absent.py: no such file"),
        (["model.device=cuda"], "model.device: cuda is not available on this machine; use model.device=cpu"),
        (["model.input_shape=null"], "model.module: my_net.py:Net: RuntimeError for rows of shape (64,)"),
        (["+model.options.color=3"], "model.module: my_net.py:Net: TypeError: Net.__init__() got an unexpected"),
        (["algo=prox_newton", "hparams.clients_per_round=6"], "prox_newton needs a linear model"),
        (["hparams.client_lr=auto"], "hparams.client_lr: got 'auto', must be a number > 0"),
        (
            ["regularizer=blockwise", "regularizer.blocks={conv*: {name: l1, strength: 0.1}}"],
            "regularizer.blocks: got 'conv*', must be all of conv1.weight, conv2.weight, fc.weight",
        ),
    ]:
        errors = [line for line in here(*TASK, *NET, *overrides, code=2).err.splitlines() if "fco-run: " in line]
        assert len(errors) == 1
        assert reason in errors[0]


IMAGES = '''
from dataclasses import dataclass

import numpy as np
from torch import nn

from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Softmax
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.models.torch_choice import Torch
from fco_cli.problem.problem import TaskData
from fco_cli.tasks import Task


class Small(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 3, 3), nn.Linear(3, outputs)

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


@dataclass(kw_only=True)
class SmallChoice(Torch):
    """A network of this plug-in."""

    name: str = "small"
    module: str = f"{__name__}:Small"


@dataclass(kw_only=True)
class Images(Task):
    """Pictures of two channels, bright on the left or on the right."""

    name: str = "images"
    strength: float = 0.01
    radius: float = 10.0

    def build(self, seed, dtype):
        random = np.random.default_rng(seed)
        y = random.integers(2, size=60)
        x = random.standard_normal((60, 2, 5, 6))
        x[y == 1, :, :, :3] += 2
        data = ClientData(x.astype(dtype), y.astype(dtype), np.array([0, 20, 40, 60]))
        return TaskData(data, Linear(60, 2), Softmax())
'''


def call(folder, *command):
    """Return what a process prints; its kernels are compiled in the tests that are marked `machine_code`."""
    done = subprocess.run([sys.executable, *command], cwd=folder, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
@needs_torch
def test_a_plugin_brings_a_module_and_a_task_of_images(tmp_path):
    (tmp_path / "images.py").write_text(IMAGES)
    settings = ["hparams.rounds=5", "hparams.clients_per_round=3", "hparams.client_lr=0.3", "algo=zhj"]
    out = call(tmp_path, "-m", "fco_cli.commands.run", "plugins=[images.py]", "task=images", "model=small", *settings)
    assert "train accuracy" in out
    (record,) = records(tmp_path / "outputs")
    assert dict(np.load(record / "model.npz"))["conv.weight"].shape == (3, 2, 3, 3)


@pytest.mark.ci
@pytest.mark.machine_code
@needs_torch
def test_the_commands_and_python_of_the_documentation_run(tmp_path):
    """docs/torch.md: every command, with two rounds, and the Python example."""
    shutil.copy(EXAMPLE, tmp_path)
    text = (EXAMPLE.parents[1] / "docs" / "torch.md").read_text(encoding="utf-8")
    blocks = text.split("```")[1::2]
    commands = [block.removeprefix("sh\n").replace("\\\n", " ") for block in blocks if block.startswith("sh\nfco-run")]
    assert commands
    for command in commands:
        script = f"import shlex, sys\nfrom fco_cli.commands.run import program\nsys.argv = shlex.split({command!r})\n"
        call(tmp_path, "-c", f"{script}sys.argv += ['hparams.rounds=2']\nprogram()")
    (python,) = [block.removeprefix("python\n") for block in blocks if block.startswith("python\n")]
    density = float(call(tmp_path, "-c", python.replace("rounds=20", "rounds=2")))
    assert 0 < density < 1


@pytest.mark.ci
def test_pytorch_is_imported_only_when_asked_for(tmp_path):
    """A plain run, its help and a sweep import no PyTorch; a test of what is loaded, with or without it installed."""
    script = (
        "import sys\nfrom fco_cli import api\n"
        "small = ['task.dimension=12', 'task.ones=4', 'task.clients=4', 'task.samples=9']\n"
        "api.run('task=lasso', *small, 'hparams.clients_per_round=2', 'hparams.rounds=1')\n"
        "from fco_cli.problem.models import choices\nassert 'torch' in choices.all_models()\n"
        "assert 'torch' not in sys.modules, 'torch is imported'\n"
    )
    call(tmp_path, "-c", script)
