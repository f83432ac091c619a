"""The wheel and the source distribution: built from a copy, checked, and without anything but the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "fco_cli", "conf", "hydra_plugins", "tests")
MAX_BYTES = 2_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Return the folder with both files; the wheel is built from the source distribution."""
    folder = tmp_path_factory.mktemp("distribution")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


@pytest.mark.ci
def test_metadata_and_contents_pass_the_checks(built):
    files = [str(path) for path in built.iterdir()]
    assert sorted(Path(file).suffix for file in files) == [".gz", ".whl"]
    (wheel,) = built.glob("*.whl")
    for command in (["twine", "check", "--strict", *files], ["check-wheel-contents", str(wheel)]):
        done = subprocess.run([Path(sys.executable).with_name(command[0]), *command[1:]], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.ci
def test_the_files_are_those_of_the_package(built):
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    packages = {name for name in names if ".dist-info/" not in name}
    expected = {
        path.relative_to(ROOT).as_posix()
        for top in ("fco_cli", "hydra_plugins")
        for path in (ROOT / top).rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert {name for name in packages if name.endswith(".py") and not name.startswith("fco_cli/conf/")} == expected
    configuration = {
        path.relative_to(ROOT / "conf").as_posix() for path in (ROOT / "conf").rglob("*.*") if path.is_file()
    }
    assert {name.removeprefix("fco_cli/conf/") for name in packages if name.startswith("fco_cli/conf/")} >= {
        name for name in configuration if name.endswith((".yaml", ".json"))
    }
    assert {"fco_cli/py.typed", "fco_cli/data/example/hospitals.csv"} <= packages
    with tarfile.open(source) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops == {
        "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "conf", "fco_cli", "fco_cli.egg-info", "hydra_plugins",
        "pyproject.toml", "setup.cfg",
    }  # fmt: skip
    assert max(path.stat().st_size for path in built.iterdir()) < MAX_BYTES


@pytest.mark.ci
def test_the_documented_sizes(built):
    """docs/how_to/install.md states megabytes with one decimal."""
    text = (ROOT / "docs" / "how_to" / "install.md").read_text(encoding="utf-8")
    for title, suffix in (("wheel", ".whl"), ("source distribution", ".gz")):
        (path,) = (path for path in built.iterdir() if path.suffix == suffix)
        (stated,) = re.findall(rf"^\| {title} \| ([\d.]+) MB \|", text, re.MULTILINE)
        assert path.stat().st_size / 1e6 == pytest.approx(float(stated), abs=0.1)
