"""The commands and the Python of the worked example in docs/inference.md, in simulation and between sites."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from fco_cli.commands import report
from fco_cli.data.readers.source import Columns
from fco_cli.federation import settings
from fco_cli.federation.coordinator.sites import Sites
from fco_cli.federation.policy import preset
from fco_cli.federation.site.data import SiteFile
from fco_cli.federation.site.site import Site
from tests.conftest import BESIDE
from tests.federation.conftest import InProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "inference.md"
SITES = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
NAMES = tuple(COLUMNS.split(","))
CATEGORICAL = ("cp", "restecg", "slope", "thal")
pytestmark = [pytest.mark.ci, pytest.mark.machine_code]


def blocks(language: str) -> list[str]:
    """Return the code blocks of the example."""
    text = DOCUMENT.read_text().partition("### Heart disease in four hospitals")[2].partition("### Survival")[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for name, block in found if name == language]


def write_small_tables(folder: Path) -> None:
    """Write four tables in the format of the UCI repository, with rows of our own."""
    random = np.random.default_rng(7)
    folder.mkdir(parents=True)
    for name, rows in zip(SITES, (130, 120, 110, 115), strict=True):
        lines = []
        for _ in range(rows):
            age, oldpeak = random.normal(54, 9), max(0, random.normal(1, 1))
            sex, pain, angina = random.integers(0, 2), random.integers(1, 5), random.integers(0, 2)
            score = 0.05 * (age - 54) + 0.6 * sex + 0.5 * (pain - 2.5) + 0.5 * angina + 0.4 * (oldpeak - 1) - 0.3
            sick = int(random.random() < 1 / (1 + np.exp(-score)))
            cells = [f"{age:.0f}", sex, pain, f"{random.normal(130, 18):.0f}", f"{random.normal(240, 50):.0f}"]
            cells += [random.integers(0, 2), random.integers(0, 3), f"{random.normal(140, 24):.0f}", angina]
            cells += [f"{oldpeak:.1f}", random.integers(1, 4), random.integers(0, 4), random.choice([3, 6, 7])]
            lines.append(",".join(map(str, ["?" if random.random() < 0.03 else cell for cell in cells] + [sick])))
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


@pytest.fixture(params=["small", "real"])
def example(request, tmp_path, monkeypatch) -> Path:
    """A working folder with the four raw tables."""
    folder = tmp_path / "data" / "heart_disease"
    if request.param == "small":
        write_small_tables(folder)
    elif (BESIDE / "heart_disease").exists():
        folder.parent.mkdir()
        folder.symlink_to(BESIDE / "heart_disease")
    else:
        pytest.skip(f"{BESIDE / 'heart_disease'} is not here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCO_DATA", str(tmp_path))
    return tmp_path


def run_block(block: str, here, monkeypatch) -> str:
    """Run the commands of a block; return what they print."""
    printed = ""
    for line in block.splitlines():
        program, *words = shlex.split(line)
        if program == "fco-run":
            printed += here(*words).out
        else:
            assert program == "fco-report"
            monkeypatch.setattr(sys, "argv", [program, *words])
            report.main()
    return printed


def assert_complete(folder: Path, name: str) -> None:
    figures = folder / "outputs" / "report" / "figures"
    kinds = ("roc", "client_calibration", "decision", "cv", "models", "clients")
    assert all((figures / f"path_{name}_{kind}.png").exists() for kind in kinds)
    assert (figures / f"glm_{name}_coefficients.png").exists()
    page = (folder / "outputs" / "report" / "index.html").read_text()
    assert "Characteristics of" in page
    assert "model card" in page
    assert list(folder.glob("outputs/glm/*/*/model_card.md"))


def test_commands(example, here, monkeypatch):
    commands, _ = blocks("")
    printed = run_block(commands, here, monkeypatch)
    assert "odds ratio" in printed
    assert "median [quartiles]" in printed
    assert_complete(example, "heart")
    assert (example / "outputs" / "report" / "figures" / "glm_heart_roc.png").exists()


def test_python(example, capsys):
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith(("from", "import"))]) <= 20
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert "odds ratio" in capsys.readouterr().out
    assert (example / "forest.png").exists()
    assert (example / "coefficients.png").exists()
    assert_complete(example, "heart")


def test_commands_between_sites(example, here, monkeypatch):
    _, commands = blocks("")
    tables = example / "data" / "heart_disease"
    roles = Columns(
        label="num>0", names=NAMES, missing=("?", "trestbps:0"), drop=("ca", "chol"), categorical=CATEGORICAL
    )
    for name in SITES:
        (example / f"{name}.csv").write_text((tables / f"processed.{name}.data").read_text())

    def site(name: str) -> Site:
        home = example / "sites" / name
        home.mkdir(parents=True, exist_ok=True)
        file = SiteFile(example / f"{name}.csv", name, roles, home / "secret")
        return Site(name, file, preset("research"), home, None)

    monkeypatch.setattr(settings, "_connection", lambda names, *_: Sites(
        list(names), lambda: InProcess({name: site(name) for name in names})))  # fmt: skip
    printed = run_block(commands, here, monkeypatch)
    assert "odds ratio" in printed
    assert "cleveland" in printed
    assert_complete(example, "custom")
