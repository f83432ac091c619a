"""The adapter: supported versions and names of NVIDIA FLARE."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import fco_cli
from fco_cli.errors import UserError
from fco_cli.federation.flare import adapter

PACKAGE = Path(fco_cli.__file__).parent

pytest.importorskip("nvflare")


def test_the_installed_version_has_all_names():
    adapter.check_flare()


@pytest.mark.parametrize("version", ["2.8.3", "2.9.9rc1", "2.10.0"])
def test_another_version_is_refused(monkeypatch, version):
    monkeypatch.setattr(adapter, "installed_version", lambda: version)
    with pytest.raises(UserError, match=f"NVIDIA FLARE {version} is not supported .*pip install nvflare==2.9.0"):
        adapter.check_flare()


@pytest.mark.parametrize("name", sorted(adapter.ATTRIBUTES))
def test_a_missing_attribute_is_reported(monkeypatch, name):
    monkeypatch.setitem(adapter.ATTRIBUTES, name, ("moved",))
    with pytest.raises(UserError, match=f"{name}.moved is missing"):
        adapter.check_flare()


@pytest.mark.parametrize(
    ("module", "line"),
    [("nvflare.moved", "nvflare.moved.CoreCell is missing"), ("nvflare.fuel", "nvflare.fuel.CoreCell is missing")],
)
def test_a_moved_name_is_reported(monkeypatch, module, line):
    monkeypatch.setitem(adapter.SOURCES, "CoreCell", (module, "CoreCell"))
    with pytest.raises(UserError, match=line):
        adapter.check_flare()


def test_only_the_adapter_imports_flare():
    """Also inside of functions."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("nvflare", "grpc")], path


def test_the_extra_requires_the_supported_versions():
    """pip installs no version that a party would refuse."""
    extras = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pin,) = [one for one in extras["federation"] if one.startswith("nvflare")]
    assert pin == f"nvflare=={adapter.SUPPORTED[-1]}"
