"""A method and a model from outside the package join the leaderboard in one command (`fco-reproduce --leaderboard`)."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fco_cli.commands import reproduce as command
from fco_cli.data.published import PUBLICATIONS

DOCUMENT = Path(__file__).parents[2] / "docs" / "tutorials" / "own_method.md"
MAKEFILE = Path(__file__).parents[2] / "Makefile"
SMALL = ["task.dimension=12", "task.ones=4", "task.clients=4", "task.samples=12"]
NET = '''
from dataclasses import dataclass

import torch
from torch import nn

from fco_cli.problem.models.torch_choice import Torch


class RandomFeatures(nn.Module):
    """Linear scores of fixed random features: convex in the weights."""

    def __init__(self, features, outputs, width=8):
        super().__init__()
        directions = torch.randn(features, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.register_buffer("directions", directions)
        self.scores = nn.Linear(width, outputs)

    def forward(self, x):
        return self.scores(torch.relu(x @ self.directions.to(x.dtype)))


@dataclass(kw_only=True)
class RandomFeaturesModel(Torch):
    """The module, as an option of the group `model`."""

    name: str = "random_features"
    module: str = f"{__name__}:RandomFeatures"
    convex: bool = True
'''
METHOD = """
from dataclasses import dataclass

from fco_cli.algorithms.fedmid import FedMid


@dataclass(kw_only=True)
class StrangerMethod(FedMid):
    name: str = "stranger_method"
"""
pytestmark = [pytest.mark.ci, pytest.mark.machine_code]


def blocks(language: str) -> list[str]:
    """Return the blocks of code of the tutorial in a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.M | re.S)
    return [block for name, block in found if name == language]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the method of the tutorial, on a machine without data."""
    (tmp_path / "pull.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["fco-reproduce"])
    return tmp_path


def reproduce(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        command.main(list(arguments))
    return int(end.value.code or 0)


def leaderboard(folder: Path) -> list[dict[str, str]]:
    with (folder / "outputs" / "report" / "tables" / "leaderboard.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_method_of_a_file_joins_every_table_and_figure(folder, monkeypatch, capfd):
    """Test `make leaderboard` on small problems: the method, the optimum, and reasons for what is skipped."""
    assert "`make leaderboard ALGO=pull.py PROFILE=quick`" in DOCUMENT.read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^leaderboard: .*\n\t\$\(BIN\)/fco-reproduce (.*)$", MAKEFILE.read_text(), re.M)
    for name, value in {"ALGO": "pull.py", "PROFILE": "smoke", "MODEL": ""}.items():
        recipe = recipe.replace(f"$({name})", value)
    monkeypatch.setattr(command, "FCO_RUN", [*command.FCO_RUN, *SMALL])
    monkeypatch.setattr(command, "_is_leaderboard", lambda name: name in ("successors", "successors_heart"))
    assert not PUBLICATIONS["heart"].folder.is_dir()
    assert reproduce(*shlex.split(recipe)) == 0
    printed = capfd.readouterr().out
    for heterogeneity in ("0.3", "1.0"):
        assert "fedmid_pull: place 1 of 1, " in printed
        assert f"Lasso I in small, heterogeneity {heterogeneity} (smoke)" in printed
    assert "skipped successors_heart: heart_disease is not on this machine" in printed
    rows = leaderboard(folder)
    assert [(row["algo"], row["method"], row["settings tried"]) for row in rows] == [
        ("fedmid_pull", "FedMiD-OSP with pull", "2")
    ] * 2
    assert all(float(row["gap at the end"]) > 0 for row in rows)
    report = folder / "outputs" / "report"
    for name in ("leaderboard", "leaderboard_profiles", "leaderboard_successors_smoke"):
        assert (report / "figures" / f"{name}.pdf").stat().st_size > 1000
        assert (report / "figures" / f"{name}.csv").is_file()
    assert "FedMiD-OSP with pull" in (report / "tables" / "leaderboard_successors_smoke.tex").read_text()
    # Another method later joins the same tables; the optimum is not run again.
    optima = list(folder.glob("outputs/smoke/successors/*/optimum/*/result.json"))
    times = [path.stat().st_mtime_ns for path in optima]
    assert len(times) == 2
    assert reproduce("--profile", "smoke", "--algo", "fedmid", "successors") == 0
    assert [path.stat().st_mtime_ns for path in optima] == times
    assert {row["algo"] for row in leaderboard(folder)} == {"fedmid_pull", "fedmid"}


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (extra `torch`)")
def test_a_method_and_a_model_of_files_join_together(folder, monkeypatch, capfd):
    """Test a convex PyTorch module on the digits; problems that need their own model are skipped with the reason."""
    (folder / "stranger_net.py").write_text(NET)
    (folder / "stranger_method.py").write_text(METHOD)
    monkeypatch.setattr(command, "FCO_RUN", [*command.FCO_RUN, "task.clients=4"])
    arguments = ["--algo", "stranger_method.py", "--model", "stranger_net.py", "successors_digits", "successors"]
    assert reproduce("--profile", "smoke", *arguments) == 0
    printed = capfd.readouterr().out
    assert "stranger_method: place 1 of 1" in printed
    assert "skipped successors with stranger_method: model: got 'random_features', must be auto" in printed
    (row,) = leaderboard(folder)
    assert (row["algo"], row["seeds"]) == ("stranger_method", "1")
    configs = [path.read_text() for path in folder.glob("outputs/smoke/successors_digits/*/*/*/config.yaml")]
    assert len(configs) == 3  # two settings and the optimum
    assert all("name: random_features" in text and "- stranger_net.py" in text for text in configs)
