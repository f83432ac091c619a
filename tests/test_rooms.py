"""Data flows one way: a lower room never imports a higher one, and nothing imports the commands."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import fco_cli

PACKAGE = Path(fco_cli.__file__).parent
# From the bottom up; rooms on one line may import each other's line only through what is below.
FLOORS = [
    {"errors"},
    {"files", "private_folder", "memory_limit", "progress", "help", "hydra_on_314", "client_rate", "typed_files"},
    {"code_digest", "csv_writer", "results"},
    {"kernels"},
    {"problem"},
    {"data"},
    {"tasks", "algorithms"},
    {"simulation"},
    {"federation"},
    {"config"},
    {"sweeps"},
    {"path"},
    {"reporting", "theory", "advice", "estimators"},
    {"api"},
    {"commands"},
]
ROOMS = {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__"}
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "conf" not in path.relative_to(PACKAGE).parts)


def room_of(module: str) -> str:
    """fco_cli.problem.data -> problem."""
    return module.split(".")[1]


def imports_of(path: Path) -> set[str]:
    """All of them, those inside of functions and those for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" if node.module == "fco_cli" else node.module for name in node.names}
    return {name for name in found if name.startswith("fco_cli.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_lower_room_never_imports_a_higher_one(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    own = parts[0]
    if own == "__init__":
        return
    for module in imports_of(path):
        room = room_of(module)
        if room not in ROOMS:  # a name of fco_cli/__init__.py
            continue
        assert FLOOR[room] < FLOOR[own] or room == own, f"{path} imports {module}"


def test_every_room_is_on_a_floor():
    assert set(FLOOR) == ROOMS - {"py"}


def test_every_module_is_small():
    """400 lines are a smell."""
    assert not [path for path in MODULES if len(path.read_text().splitlines()) > 400]


def test_every_package_is_shipped():
    """setuptools takes those that are listed, and says nothing of the others."""
    root = PACKAGE.parent
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    code = [path.parent.relative_to(root) for path in PACKAGE.rglob("*.py")]
    settings = ["fco_cli" / path.parent.relative_to(root) for path in (root / "conf").rglob("*.yaml")]
    templates = [path.parent.relative_to(root) for path in PACKAGE.rglob("*.html")]
    folders = {str(folder).replace("/", ".") for folder in (*code, *settings, *templates)}
    assert folders <= set(listed)
