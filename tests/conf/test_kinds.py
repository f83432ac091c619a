"""Each kind of experiment is run once, as `fco-run -m experiment=... profile=smoke` does it, on the smallest data."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra._internal.hydra import Hydra

from fco_cli.commands import run as command
from fco_cli.help import options_of

FEW = ["task.clients=4", "task.samples=10", "hparams.clients_per_round=2"]
LASSO = ["task.dimension=12", "task.ones=3", *FEW]
ONE = "algo=feddualavg"  # every algorithm has kernels of its own to compile: lasso runs all of its own, the others one
SMALLEST = {  # experiment -> overrides
    "lasso_i": LASSO,
    "nuclear_i": [ONE, "task.dimension=4", "task.rank=1", *FEW],
    "curse": [*LASSO, "hparams.batch_size=10", "hparams.local_epochs=5"],
    "fmri_sim": [
        ONE, "task.train_subjects=2", "task.sessions=2", "task.scans=4", "task.resolution=16", "task.region_size=40",
        "hparams.clients_per_round=3",
    ],
    "digits": [ONE, "task.clients=4", "hparams.clients_per_round=2"],
    "femnist10_l1": [ONE, "task.data_dir=writers.npz", "task.client_fraction=1", "hparams.clients_per_round=2"],
    "hidden_settings": [*LASSO, ONE, "task=lasso_i,lasso_ii", "task.start=glorot", "regularizer.strength=0.2,0.5"],
    "subgradient": [*LASSO, ONE],
    "successors": ["algo=feddualavg,zhj", "task.dimension=12", "task.ones=3", "task.clients=4", "task.samples=10"],
    "few_rounds": ["algo=fista,dlsa", "task.dimension=8", "task.ones=3", "task.clients=4", "task.samples=20"],
    "path": [
        "task=lasso", "task.dimension=12", "task.ones=4", "task.clients=4", "task.samples=10",
        "path.strengths=3", "path.folds=2", "path.tolerance=1e-2", "hparams.tolerance=1e-2",
    ],
    "glm": ["task=lasso", "task.dimension=5", "task.ones=2", "task.clients=4", "task.samples=10"],
    "table1": ["task.path=writers.npz", "table1.columns=[y]", "table1.quartiles=false"],
    "theory": ["theory.rounds=[4]", "theory.steps=[2]", "theory.clients=[2]", "theory.rates=[0.25]"],
}  # fmt: skip
NEEDS_A_DOWNLOAD = {"fmri"}  # tests/tasks/test_fmri.py runs it on a tree in nilearn's layout


@pytest.fixture
def fco_run(tmp_path, monkeypatch):
    """Run the command in this process and in its own folder; restore what it changes for the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Hydra, "get_mode", Hydra.get_mode)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    threshold = gc.get_threshold()

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["fco-run", *arguments])
        command.main()

    yield run
    gc.set_threshold(*threshold)


def write_writers(path: Path) -> None:
    """Four writers with three training images and a test image each."""
    rows = np.arange(16)
    pixels = np.random.default_rng(0).random((16, 784)).astype(np.float32)
    np.savez(path, x=pixels, y=rows % 10, client=rows // 4, split=np.where(rows % 4 == 3, "test", "train"))


SLOW = ("nuclear_i", "digits", "fmri_sim", "femnist10_l1")  # to compile; their tasks have tests of their own


@pytest.mark.ci
@pytest.mark.parametrize(
    "experiment", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SMALLEST]
)
def test_it_runs(fco_run, tmp_path, experiment):
    write_writers(tmp_path / "writers.npz")
    profile = "paper" if experiment in ("path", "glm", "table1") else "smoke"  # they have one scale
    fco_run("-m", f"experiment={experiment}", f"profile={profile}", "hydra.launcher.n_jobs=1", *SMALLEST[experiment])
    folder = tmp_path / "outputs" / ("" if profile == "paper" else profile) / experiment
    if experiment == "theory":
        assert (folder / "theory.png").exists()
        return
    if experiment == "path":
        (done,) = folder.glob("*/*/*/path.csv")
        assert json.loads((done.parent / "result.json").read_text())["chosen"].keys() == {"min", "1se"}
        return
    if experiment == "glm":
        assert len(list(folder.glob("*/*/coefficients.csv"))) == 1
        return
    if experiment == "table1":
        assert len(list(folder.glob("*/*/table1.csv"))) == 1
        return
    results = [json.loads(path.read_text()) for path in folder.glob("*/*/*/result.json")]
    assert results
    assert "finished" in {result["status"] for result in results}
    assert (len(list(folder.glob("*/*/*/clients.npz"))) > 0) == (experiment == "curse")


def test_no_kind_is_forgotten():
    """An experiment is of the kind from which it inherits: the first part of its name."""
    kinds = {name.split("_")[0].rstrip("0123456789") for name in [*SMALLEST, *NEEDS_A_DOWNLOAD]}
    assert {name.split("_")[0].rstrip("0123456789") for name in options_of("experiment")} == kinds
