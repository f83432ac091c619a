"""The option model=torch: layout, initial weights, identity; one line for every unsupported module."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fco_cli import api
from fco_cli.config import Run
from fco_cli.config.compose import compose
from fco_cli.errors import UserError
from fco_cli.problem.models import torch_source
from fco_cli.problem.models.torch_choice import Torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

EXAMPLE = Path(__file__).parents[3] / "examples" / "my_net.py"
NUMBERS = itertools.count()
DENSE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, outputs=10, width=3):
        super().__init__()
        self.a, self.b = nn.Linear(64, width), nn.Linear(width, outputs)
    def forward(self, x):
        return self.b(self.a(x).relu())

def make(width):
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
"""
TASK = ["task=digits", "task.clients=6", "hparams.clients_per_round=2", "hparams.rounds=2", "hparams.client_lr=0.1"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a file of a new name, since a process loads each name once."""
    monkeypatch.chdir(tmp_path)

    def new(content: str = DENSE) -> str:
        path = tmp_path / f"net_{next(NUMBERS)}.py"
        path.write_text(content)
        return path.name

    return new


def run_of(*overrides: str) -> Run:
    return Run.of(compose([*TASK, "model=torch", *overrides]))


def data_of(*overrides: str):
    run = run_of(*overrides)
    return run.task.data(run.seed, run.hparams.dtype)


def test_parameters_are_named_blocks_and_vectors_are_not_regularized(write):
    data = data_of(f"model.module={write()}:Net", "model.options={width: 5}")
    blocks = [(block.name, block.shape, block.regularized) for block in data.model.layout.blocks]
    expected = [
        ("a.weight", (5, 64), True),
        ("a.bias", (5,), False),
        ("b.weight", (10, 5), True),
        ("b.bias", (10,), False),
    ]
    assert blocks == expected
    assert data.model.widths.tolist() == [64, 10]


def test_initial_weights_are_a_function_of_the_seed(write):
    file = write()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (data_of(f"model.module={file}:Net", f"seed={seed}").model.initial() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    assert torch.equal(before, torch.get_rng_state())


def test_weights_have_the_precision_of_the_run(write):
    file = write()
    for dtype in ("float32", "float64"):
        assert (
            str(data_of(f"model.module={file}:make", "model.options={width: 2}", f"hparams.dtype={dtype}").model.dtype)
            == dtype
        )


def test_another_process_loads_the_module_from_its_file(write):
    choice = Torch(module=f"{write()}:Net")
    assert choice.source.path == Path(choice.module.split(":")[0])
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).source.label)"
    other = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(choice), capture_output=True, check=True)
    assert other.stdout.decode().strip() == choice.source.label


@pytest.mark.parametrize(("line", "setting", "convex"), [("", False, False), ("", True, True), ("True", False, True)])
def test_the_key_or_the_class_states_convexity(write, line, setting, convex):
    body = f"    convex = {line}\n" if line else ""
    file = write(DENSE.replace("class Net(nn.Module):\n", f"class Net(nn.Module):\n{body}"))
    assert data_of(f"model.module={file}:Net", f"model.convex={setting}").model.convex is convex


def test_the_code_of_the_module_is_part_of_the_identity_and_its_path_is_not(write, tmp_path):
    first, same, other = write(), write(), write(DENSE.replace("relu()", "tanh()"))
    ids = [run_of(f"model.module={file}:Net").run_id for file in (first, same, other)]
    # The names of modules are part of the digest of code.
    renamed = [run_of(f"model.module={tmp_path / first}:Net").run_id, run_of(f"model.module={first}:Net").run_id]
    assert renamed == [ids[0]] * 2
    assert ids[2] not in ids[:2]
    settings = ["model.options={width: 4}", "model.stack=vmap", "model.convex=true", "model.input_shape=[64]"]
    assert len({run_of(f"model.module={first}:Net", one).run_id for one in settings} | {ids[0]}) == 5
    assert run_of(f"model.module={first}:Net").digests["data"] != Run.of(compose(TASK)).digests["data"]


def test_weights_that_a_module_reads_from_a_file_are_part_of_the_identity(write, tmp_path):
    def identity(number):
        (tmp_path / "start.txt").write_text(str(number))
        torch_choice.digest_of_constants.cache_clear()
        return run_of(f"model.module={file}:make").run_id

    from fco_cli.problem.models import torch_choice

    file = write(
        "from pathlib import Path\nfrom torch import nn\ndef make():\n    layer = nn.Linear(64, 10)\n"
        f"    start = Path({str(tmp_path / 'start.txt')!r})\n"
        "    nn.init.constant_(layer.bias, float(start.read_text()))\n    return layer\n"
    )
    first = identity(1)
    assert identity(2) != first
    assert identity(1) == first


def test_objects_of_this_process_are_modules_too(write):
    class Here(torch.nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.layer = torch.nn.Linear(64, outputs)

        def forward(self, x):
            return self.layer(x)

    override = api.torch_module(Here)
    assert api.torch_module(Here) == override
    assert data_of(override).model.layout.size == 650
    module = Here(10)
    own = data_of(api.torch_module(module)).model
    start = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    np.testing.assert_array_equal(own.initial(), start)
    own.module.layer.weight.data.zero_()
    assert module.layer.weight.abs().min() > 0, "the module of the caller is not trained"
    other = Here(10)
    assert run_of(api.torch_module(module)).run_id != run_of(api.torch_module(other)).run_id
    assert len({api.torch_module(item) for item in (Here, module, other)}) == 3
    with pytest.raises(ValueError, match=r"model\.module: got int, must be a torch\.nn\.Module"):
        api.torch_module(3)
    with pytest.raises(UserError, match="python:Absent is an object of another process"):
        data_of("model.module=python:Absent")


def test_parameters_without_gradients_are_constants(write):
    file = write(DENSE + "\ndef frozen():\n    net = Net()\n    net.a.requires_grad_(False)\n    return net\n")
    assert [block.name for block in data_of(f"model.module={file}:frozen").model.layout.blocks] == [
        "b.weight",
        "b.bias",
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 3", " returns int, must return a torch.nn.Module"),
        ("return nn.ReLU()", " has no parameters to train"),
        (
            "return nn.Linear(64, 7)",
            r" returns \(4, 7\) for 4 rows, must be \(4, 10\) of float32: the softmax loss",
        ),
        ("return nn.Linear(63, 10)", r": RuntimeError for rows of shape \(64,\): mat1 and mat2"),
        ("return nn.LazyLinear(10)", ": the size of weight is unknown"),
        ("1 / 0", ": ZeroDivisionError: division by zero"),
        (
            "n = nn.Linear(64, 10); n.bias.data[0] = float('nan'); return n",
            "parameter bias has entries that are not finite",
        ),
        (
            "n = nn.Linear(64, 10); n.steps = nn.Parameter(torch.ones(2).long(), requires_grad=False); return n",
            "parameter steps is int64, must be real",
        ),
        ("return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))", "training changes the buffer 1.running_mean"),
        (
            "return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False))",
            "the scores of a row depend on the other rows of its batch",
        ),
        ("return Noise()", r"scores are random after eval\(\)"),
        ("return Wide()", "of float64 for 4 rows, must be"),
        ("return Infinite()", "the scores of the first rows are not finite"),
        ("return Pair()", " returns tuple, must return a tensor"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_in_one_line(write, body, reason):
    bad = "".join(
        f"\nclass {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.a = nn.Linear(64, 10)\n    def forward(self, x):\n        x = self.a(x)\n"
        f"        return {value}\n"
        for name, value in (
            ("Noise", "x + torch.randn(())"),
            ("Wide", "x.double()"),
            ("Infinite", "x / 0"),
            ("Pair", "(x, x)"),
        )
    )
    file = write(f"{DENSE}{bad}\ndef make():\n    {body}\n".replace("def make(width)", "def other(width)"))
    with pytest.raises(UserError, match=rf"^model\.module: {file}:make.*{reason}") as problem:
        data_of(f"model.module={file}:make")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["model.module=absent.py:Net"], r"model\.module: absent\.py: no such file; paths are relative to"),
        (["model.module=absent.py"], r"model\.module: got 'absent\.py', must be .*:NAME or MODULE:NAME"),
        (["model.module=no_such_place:Net"], r"model\.module: no_such_place: ModuleNotFoundError"),
        (["model.module=FILE:Absent"], r"model\.module: FILE:Absent: Absent not found; it defines Net, make"),
        (["model.module=FILE:torch"], r"model\.module: FILE:torch is module, must be a class or a function"),
        (["model.module=FILE:Net", "model.options={depth: 3}"], "FILE:Net: TypeError: .*unexpected keyword argument"),
        (["model.module=FILE:Net", "model.device=cuda"], r"model\.device: cuda is not available on this machine"),
        (
            ["model.module=FILE:Net", "model.device=gpu"],
            r"model\.device: got 'gpu', must be cpu, cuda, cuda:NUMBER or mps",
        ),
        (["model.module=FILE:Net", "model.stack=all"], r"model\.stack: got 'all', must be one of loop, vmap"),
        (["model.module=FILE:Net", "model.input_shape=[8,9]"], r"model\.input_shape: .* with 64 entries"),
        (["model.module=FILE:Net", "model.input_shape=[0]"], r"model\.input_shape: .* whole numbers >= 1"),
        (["model.module=FILE:Net", "task.start=glorot"], r"task\.start: .* null: model=torch initializes itself"),
        ([], r"model\.module: has no value and needs one|module"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(write, overrides, reason):
    file = write()
    with pytest.raises(Exception, match=reason.replace("FILE", file)) as problem:
        data_of(*(one.replace("FILE", file) for one in overrides))
    assert isinstance(problem.value, UserError) or not overrides


def test_an_edited_file_and_a_second_file_of_the_same_name_are_refused(write, tmp_path):
    file = write()
    run_of(f"model.module={file}:Net").run_id  # noqa: B018 - loads the file
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / file).write_text(DENSE)
    with pytest.raises(UserError, match="have the same file name; rename one of them"):
        run_of(f"model.module=more/{file}:Net").run_id  # noqa: B018
    (tmp_path / file).write_text(DENSE + "\n")
    with pytest.raises(UserError, match="was edited after this process loaded it"):
        run_of(f"model.module={file}:Net").run_id  # noqa: B018


def test_a_file_that_fails_is_refused_with_its_line(write):
    file = write("x = 1\nx / 0\n")
    with pytest.raises(UserError, match=rf"model\.module: {file}: line 2: ZeroDivisionError: division by zero"):
        data_of(f"model.module={file}:Net")


def test_missing_torch_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(torch_source.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"model=torch needs PyTorch: run pip install '\.\[torch\]'"):
        Torch(module="a.py:Net")


def test_tasks_whose_metrics_need_their_own_model_refuse_modules(write):
    file = write(DENSE.replace("10", "1").replace("64", "1024"))
    run = Run.of(compose(["task=lasso", "model=torch", f"model.module={file}:Net"]))
    with pytest.raises(UserError, match="model: got 'torch', must be auto: the metrics of lasso need its own model"):
        run.task.data(run.seed, run.hparams.dtype)


def test_vmap_falls_back_to_the_loop_for_modules_that_branch_on_numbers(write, caplog):
    file = write(
        DENSE + "\nclass Branch(Net):\n    def forward(self, x):\n"
        "        x = super().forward(x)\n        return x if x.sum() > 0 else 2 * x\n"
    )
    model = data_of(f"model.module={file}:Branch", "model.stack=vmap").model
    assert type(model.evaluation).__name__ == "JobByJob"
    assert "jobs are evaluated one by one, because" in caplog.text
    assert type(data_of(f"model.module={file}:Net", "model.stack=vmap").model.evaluation).__name__ == "AllJobs"


def test_dropout_is_noticed(write):
    file = write(DENSE + "\ndef noisy():\n    return nn.Sequential(nn.Linear(64, 10), nn.Dropout())\n")
    assert data_of(f"model.module={file}:noisy").model.is_random
    assert not data_of(f"model.module={file}:Net").model.is_random


def test_the_example_is_a_module_of_rows_of_images():
    data = data_of(f"model.module={EXAMPLE}:Net", "model.input_shape=[1,8,8]", "model.options={channels: 4}")
    assert data.model.row_shape == (1, 8, 8)
    assert data.model.layout.view(data.model.initial()[None], "conv1.weight").shape == (1, 4, 1, 3, 3)
    assert sys.modules["fco_model_my_net"].Net.__doc__
