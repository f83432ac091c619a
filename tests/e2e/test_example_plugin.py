"""The example plug-in, installed next to the package in a clean environment, works without edits of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
SWEEP = (
    "-m task=lasso algo=fedmid_osp,fedmid_inertia regularizer=smooth_l1 hparams.client_lr=0.0003 hparams.rounds=10 "
    "task.clients=8 task.dimension=16 task.ones=4 hparams.clients_per_round=4"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """Return the programs of an environment with the package, the plug-in and pytest."""
    folder = tmp_path_factory.mktemp("environment")
    sources = folder / "package"  # a copy: building writes into the folder
    shutil.copytree(
        ROOT, sources, ignore=lambda path, names: {name for name in names if name[0] == "." or name == "outputs"}
    )
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    plugin = shutil.copytree(EXAMPLE, folder / "plugin")
    command = [programs / "python", "-m", "pip", "install", "--quiet", sources, plugin, "pytest"]
    subprocess.run(command, check=True, timeout=900, env=clean_environment())
    return programs


def clean_environment() -> dict[str, str]:
    """Return the variables of this process without those that make Python import from elsewhere."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def call(programs: Path, folder: Path, *command: str) -> str:
    done = subprocess.run(
        [programs / command[0], *command[1:]], cwd=folder, capture_output=True, text=True, timeout=600,
        env=clean_environment() | {"XDG_CACHE_HOME": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.ci
def test_the_example_runs_outside_of_the_package(environment, tmp_path):
    own = shutil.copytree(EXAMPLE, tmp_path / "example")
    assert "InertialFedMid" in call(environment, tmp_path, "python", "-c", "import fco_example as e; print(dir(e))")
    call(environment, tmp_path, "fco-run", *SWEEP.split())
    report = call(environment, tmp_path, "fco-report", "outputs", "--study", str(own / "study"))
    assert "inertia" in report
    made = tmp_path / "outputs" / "report"
    numbers = (made / "figures" / "inertia.csv").read_text()
    assert "fedmid_inertia" in numbers
    assert (made / "figures" / "inertia.png").stat().st_size > 1000
    assert "| lasso | **" in (made / "CLAIMS.md").read_text()
    assert "FedMiD with inertia" in (made / "index.html").read_text()
    assert "3 passed" in call(environment, own, "python", "-m", "pytest", "-q", "tests")


def test_the_example_is_what_its_readme_says():
    text = (EXAMPLE / "README.md").read_text()
    assert all(word in text for word in SWEEP.split()[:6])
