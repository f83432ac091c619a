"""The documentation site builds offline without a warning, its gallery runs, and its links exist."""

from __future__ import annotations

import html
import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import fco_cli.api
import fco_cli.estimators
import fco_cli.testing

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "docs" / "gallery").glob("plot_*.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build a copy, so that generated pages and pictures in the repository stay as they are."""
    folder = tmp_path_factory.mktemp("site")
    for path in ROOT.iterdir():
        if path.name == "docs":
            generated = shutil.ignore_patterns("_build", "auto_gallery", "generated", "outputs")
            shutil.copytree(path, folder / "docs", ignore=generated)
        else:
            (folder / path.name).symlink_to(path)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "html"]
    compiled = {key: value for key, value in os.environ.items() if key != "NUMBA_DISABLE_JIT"}
    done = subprocess.run(command, cwd=folder, env=compiled, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


def is_own(module: ModuleType, name: str) -> bool:
    return getattr(module, name).__module__ == module.__name__


@pytest.mark.ci
def test_the_site_has_all_pages(site):
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    sources = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if not {"_build", "auto_gallery", "generated", "gallery"} & set(path.relative_to(ROOT / "docs").parts)
    }
    assert sources <= pages
    assert {f"auto_gallery/{path.stem}" for path in SCRIPTS} <= pages
    assert {f"reference/generated/{name}" for name in ("configuration", "classes", "commands")} <= pages
    for module in (fco_cli.api, fco_cli.estimators, fco_cli.testing):
        functions = [name for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
        public = getattr(module, "__all__", [name for name in functions if is_own(module, name)])
        assert public
        assert {f"reference/generated/api/{module.__name__}.{name}" for name in public} <= pages
    assert (site / "_static" / "curse.html").exists()


@pytest.mark.ci
def test_every_script_of_the_gallery_has_a_picture(site):
    needs = {"torch": "torch", "sites": "nvflare"}
    for path in SCRIPTS:
        if find_spec(needs.get(path.stem.split("_", 2)[2], "fco_cli")):
            assert list((site / "_images").glob(f"sphx_glr_{path.stem}_001*.png")), path.stem


@pytest.mark.ci
def test_links_and_anchors_of_the_site_exist(site):
    pages = [path for path in site.rglob("*.html") if path.parent.name != "_static"]  # those are templates
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    missing = set()
    for path, text in texts.items():
        for target in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:|//", target):
                continue
            name, _, anchor = unquote(html.unescape(target)).partition("#")
            file = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not file.exists() or (anchor and file in anchors and anchor not in anchors[file]):
                missing.add((path.relative_to(site).as_posix(), target))
    assert not missing


def test_gallery_scripts_are_short_and_numbered():
    assert [path.name[5:7] for path in SCRIPTS] == [f"{k + 1:02}" for k in range(len(SCRIPTS))]
    assert len(SCRIPTS) >= 20
    assert all(path.read_text(encoding="utf-8").count("\n") < 40 for path in SCRIPTS)
