"""pyproject.toml declares exactly the packages that are imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from fco_cli.federation.flare import adapter

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = ("fco_cli", "hydra_plugins")


def declared(requirements: list[str]) -> set[str]:
    """Return the names of distributions in requirements, as PyPI normalizes them."""
    return {re.split(r"[^A-Za-z0-9._-]", one)[0].lower().replace("_", "-") for one in requirements}


CORE = declared(PROJECT["dependencies"])
EXTRAS = declared(
    [one for name, own in PROJECT["optional-dependencies"].items() if name not in ("dev", "docs") for one in own]
)
SOURCES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield every third-party module that a file imports, and whether that happens as the file is loaded."""

    def visit(node: ast.AST, loading: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            names = []
            if isinstance(child, ast.Import):
                names = [name.name for name in child.names]
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                names = [child.module]
            for top in {name.partition(".")[0] for name in names}:
                if top not in sys.stdlib_module_names and top not in OURS:
                    yield top, loading
            late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
                isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            )
            yield from visit(child, loading and not late)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), True)


@pytest.fixture(scope="module")
def distributions() -> dict[str, set[str]]:
    found = packages_distributions()
    return {module: {name.lower().replace("_", "-") for name in own} for module, own in found.items()}


def test_every_import_is_of_a_declared_dependency(distributions):
    """A package that another dependency installs must be declared too; those of extras are imported late."""
    for path in SOURCES:
        for module, loading in imports(path):
            own = distributions.get(module)
            if own is None:
                continue  # not installed here: an extra's
            if loading:
                assert own & CORE, f"{path.relative_to(ROOT)} imports {module} as it is loaded: must be a dependency"
            assert own & (CORE | EXTRAS), f"{path.relative_to(ROOT)} imports {module}: pyproject.toml does not name it"


def test_no_dependency_is_declared_that_nothing_imports(distributions):
    """Launchers are plugins of Hydra, which are not imported; MLflow needs alembic for a database."""
    imported = {name for path in SOURCES for module, _ in imports(path) for name in distributions.get(module, {module})}
    imported |= {module.partition(".")[0] for module, _ in adapter.SOURCES.values()}  # imported by name
    installed = {name for own in distributions.values() for name in own}
    declared_here = {name for name in CORE | EXTRAS if not name.startswith("hydra-") and name in installed}
    assert declared_here - {"msgspec", "alembic"} <= imported
