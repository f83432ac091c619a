"""The registry, and plug-ins that are refused: one line with the file and the reason, and nothing stays registered.

Plug-ins that register something are tested in processes of their own (tests/e2e/test_plugins.py).
"""

from __future__ import annotations

import os
import sys

import pytest

from fco_cli.errors import UserError
from fco_cli.plugins import environment_plugins, load_plugins
from fco_cli.problem.registry import FAMILIES, load_plugin

ALGORITHM = "from fco_cli.algorithms.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = {!r}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FCO_PLUGINS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = 1\nx / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("def f(:\n", "line 1: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("x = 1\n", "registers nothing; define a subclass with a `name` of one of .*Algorithm, .*Loss, .*Task"),
        (ALGORITHM.format("zhj"), r"algo 'zhj' is already defined in fco_cli\.algorithms\.control_variates"),
        (ALGORITHM.format("a") + ALGORITHM.format("a").replace("Mine", "B"), "algo 'a' is already defined in .*own"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused_in_one_line(folder, content, reason):
    (folder / "own.py").write_text(content)
    before = {group: family() for group, family in FAMILIES.items()}
    with pytest.raises(UserError, match=rf"^plugins: own\.py: {reason}") as problem:
        load_plugins(["plugins=[own.py]"])
    assert "\n" not in str(problem.value)
    del problem
    assert "fco_plugin_own" not in sys.modules
    assert {group: family() for group, family in FAMILIES.items()} == before


def test_a_missing_file_and_a_missing_module_are_refused(folder):
    with pytest.raises(UserError, match=rf"plugins: deep/own\.py: no such file; paths are relative to {folder}"):
        load_plugin("deep/own.py")
    with pytest.raises(UserError, match="plugins: no_such_module: ModuleNotFoundError"):
        load_plugin("no_such_module")


@pytest.mark.parametrize(
    "text", ["plugins=own.py", "plugins=null", "plugins=[1]", "plugins=[a.py],[b.py]", "plugins=["]
)
def test_anything_but_a_list_of_files_is_refused(text):
    with pytest.raises(UserError, match=r"must be a list of files or modules, such as plugins=\[my_method\.py\]"):
        load_plugins([text])


def test_overrides_without_plugins_are_unchanged():
    overrides = ["-m", "task=lasso", "task.label='plugins=[x]'"]
    assert load_plugins(overrides) == overrides
    assert load_plugins(["plugins=[]", "task=lasso"]) == ["task=lasso"]


def test_the_variable_lists_plugins_in_three_ways(monkeypatch):
    for listed in ("a.py, b.py", os.pathsep.join(["a.py", "b.py"]), "[a.py,b.py]"):
        monkeypatch.setenv("FCO_PLUGINS", listed)
        assert environment_plugins() == ["a.py", "b.py"]


def test_every_family_is_registered():
    expected = {"algo", "regularizer", "loss", "mirror", "model", "task", "transform", "federation"}
    assert expected <= set(FAMILIES)
    for family in FAMILIES.values():
        for name, kind in family().items():
            assert issubclass(kind, family.base)
            assert kind.name == name
