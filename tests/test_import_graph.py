"""Tests of the import graph: a lower package never imports a higher one, and nothing imports the commands."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

import fco_cli

PACKAGE = Path(fco_cli.__file__).parent
# Packages and top-level modules from the bottom up; those in one layer do not import each other.
LAYERS = [
    {"errors"},
    {"files", "memory_limit", "help", "client_rate", "typed_files"},
    {"code_digest", "results"},
    {"kernels"},
    {"problem"},
    {"data", "plugins"},
    {"tasks", "algorithms", "export", "model_card"},
    {"simulation"},
    {"federation", "testing", "tracking"},
    {"config"},
    {"sweeps"},
    {"path"},
    {"reporting", "theory", "estimators"},
    {"inference", "search", "studies", "table1"},
    {"experiments"},
    {"api"},
    {"commands"},
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
NAMES = {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__", "py"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "conf" not in path.relative_to(PACKAGE).parts)


def load_script():
    """Return docs/import_graph.py as a module."""
    path = PACKAGE.parent / "docs" / "import_graph.py"
    spec = importlib.util.spec_from_file_location("import_graph", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


import_graph = load_script()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_lower_package_never_imports_a_higher_one(path):
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for module in import_graph.imports_of(path):
        name = module.split(".")[1]
        if name in NAMES and name != own:  # other names are those of fco_cli/__init__.py
            assert LAYER[name] < LAYER[own], f"{path} imports {module}"


def test_every_package_is_in_a_layer():
    assert set(LAYER) == NAMES


def test_the_diagram_in_contributing_is_the_import_graph():
    """`python docs/import_graph.py --write` updates it."""
    assert import_graph.split_contributing()[1] == import_graph.diagram()


def test_the_reduction_keeps_only_direct_edges():
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a", "c"}}
    assert import_graph.reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c"}}
    assert list(import_graph.mermaid_lines({"a": set(), "b": {"a"}}))[:2] == ["flowchart TD", "    a --> b"]


def test_every_module_is_small():
    """Check that no module has more than 400 lines."""
    assert not [path for path in MODULES if len(path.read_text().splitlines()) > 400]


def test_every_package_is_shipped():
    """setuptools ships the listed packages only, without a warning about others."""
    root = PACKAGE.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    code = [path.parent.relative_to(root) for path in PACKAGE.rglob("*.py")]
    settings = ["fco_cli" / path.parent.relative_to(root) for path in (root / "conf").rglob("*.yaml")]
    templates = [path.parent.relative_to(root) for path in PACKAGE.rglob("*.html")]
    folders = {str(folder).replace("/", ".") for folder in (*code, *settings, *templates)}
    assert folders <= set(listed)
