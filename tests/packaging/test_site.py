"""The distribution for sites: built from packaging/site, installed in a clean environment, and run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fco_cli
from fco_cli.commands.federation_demo import Loopback

ROOT = Path(__file__).parents[2]
EXCLUDED = (
    "matplotlib",
    "nilearn",
    "nibabel",
    "scikit-learn",
    "pillow",
    "joblib",
)  # NVIDIA FLARE itself requires Jinja


def project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def test_a_site_requires_what_the_whole_package_requires():
    main, site = project("pyproject.toml"), project("packaging/site/pyproject.toml")
    extras = main["project"]["optional-dependencies"]
    known = main["project"]["dependencies"] + extras["federation"]
    assert set(site["project"]["dependencies"]) < set(known)
    assert set(extras["federation"]) < set(site["project"]["dependencies"])
    assert site["project"]["optional-dependencies"]["parquet"] == extras["parquet"]
    assert set(site["tool"]["setuptools"]["packages"]) < set(main["tool"]["setuptools"]["packages"])


@pytest.mark.parametrize("name", ["Containerfile", "fco-site.service"])
def test_the_documentation_shows_the_files(name):
    text = (ROOT / "packaging/site" / name).read_text(encoding="utf-8")
    assert text.partition("\n")[2] in (ROOT / "docs/federation.md").read_text(encoding="utf-8")
    assert name != "Containerfile" or f"fco_site-{fco_cli.__version__}-py3" in text


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """Return fco-federate of a clean environment with the distribution for sites."""
    pytest.importorskip("nvflare")
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, ROOT / "packaging/site"], check=True)
    (wheel,) = folder.glob("fco_site-*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    clean = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*clean, "install", "-q", wheel], check=True)
    subprocess.run([*clean, "check"], check=True)
    names = subprocess.run([*clean, "list", "--format=freeze"], check=True, capture_output=True, text=True).stdout
    assert not [name for name in EXCLUDED if f"\n{name}==" in names.lower()]
    return folder / "venv/bin/fco-federate"


class SlimSite(Loopback):
    """Federation whose site north has the clean environment."""

    program: Path

    def _command(self, party: str, arguments: Sequence[str]) -> list[str]:
        command = super()._command(party, arguments)
        return [str(self.program), *command[3:]] if party == "north" else command


@pytest.mark.ci
def test_a_site_runs_with_its_own_packages_only(program, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    random, data = np.random.default_rng(0), {}
    for name in ("north", "south"):
        data[name] = tmp_path / f"{name}.csv"
        lines = [f"{a},{b},{int(a > b)}" for a, b in random.normal(size=(30, 2))]
        data[name].write_text("\n".join(["a,b,label", *lines, ""]))
    with SlimSite(tmp_path / "parties", data, ["--label", "label"]) as federation:
        federation.program = program
        federation.up()
        arguments = [
            "task=custom", "task.loss=logistic", "federation=flare", "federation.sites=[north,south]",
            f"federation.home={federation.home('coordinator')}", f"output_dir={tmp_path}", "algo=zhj",
            "hparams.client_lr=0.05", "hparams.rounds=2", "hparams.clients_per_round=2", "threads=1",
        ]  # fmt: skip
        command = [sys.executable, "-m", "fco_cli.commands.run", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
