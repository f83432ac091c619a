"""Tests of the checks on a Dask worker and of a run's identity on another machine."""

import copy
import importlib
import pickle
import socket
import sys
from dataclasses import fields

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.simulation.process import software
from fco_cli.sweeps.cluster import PATHS, _cause, _check, _unpickle, _with_absolute_paths
from fco_cli.sweeps.stacks import Stack
from fco_cli.tasks import all_tasks

register()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a run on a file with a relative path."""
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).standard_normal((12, 2))
    np.savez("data.npz", x=values, y=values.sum(axis=1), client=np.repeat(["a", "b", "c"], 4))
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        config = compose("config", overrides=["task=custom", "task.path=data.npz", "task.loss=squared"])
    return Run.of(config)


def test_a_worker_in_another_folder_has_the_same_run(run, tmp_path, monkeypatch):
    run_id = run.run_id
    sent = _with_absolute_paths(run)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    _check("tcp://worker:1", sent, software())
    assert sent.run_id == run_id
    assert sent.yaml == run.yaml  # the record has the user's configuration


def test_a_worker_with_other_software_refuses(run):
    for key, name in (("python", "Python"), ("git_revision", "revision")):
        with pytest.raises(UserError, match=f"the worker tcp://worker:1 has {name} .* instead of another"):
            _check("tcp://worker:1", run, {**software(), key: "another"})
    older = copy.deepcopy(software())
    older["versions"]["numba"] = "0.1"
    with pytest.raises(UserError, match=r"has numba .* instead of 0\.1"):
        _check("tcp://worker:1", run, older)


def test_a_worker_with_other_data_or_none_refuses(run, tmp_path):
    assert run.run_id
    with np.load("data.npz") as old:
        arrays = dict(old)
    arrays["y"][0] += 1
    np.savez("data.npz", **arrays)
    with pytest.raises(UserError, match="the worker tcp://worker:1 has other data for custom than this machine"):
        _check("tcp://worker:1", run, software())
    (tmp_path / "data.npz").unlink()
    with pytest.raises(UserError, match=r"data\.npz: no such file .* on the worker tcp://worker:1"):
        _check("tcp://worker:1", run, software())


def test_every_key_that_names_a_file_is_listed():
    """A new task with a key for a file or a folder must add it to PATHS."""
    text = {field.name for task in all_tasks().values() for field in fields(task) if str(field.type).startswith("str")}
    assert {name for name in text if "path" in name or "dir" in name or "file" in name} == set(PATHS)


def test_a_worker_without_a_module_of_the_run_is_named_with_its_host(tmp_path, monkeypatch):
    """The worker's process unpickles the stack; the scheduler never does."""
    (tmp_path / "of_the_user.py").write_text("class Item:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pickled = pickle.dumps(Stack(0, [importlib.import_module("of_the_user").Item()]))
    assert len(_unpickle(pickled, "tcp://worker:1").runs) == 1
    monkeypatch.delitem(sys.modules, "of_the_user")
    (tmp_path / "of_the_user.py").write_text("")
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"the worker tcp://worker:1 \(host .+\) has other code"):
        _unpickle(pickled, "tcp://worker:1")
    monkeypatch.delitem(sys.modules, "of_the_user")
    (tmp_path / "of_the_user.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(UserError) as problem:
        _unpickle(pickled, "tcp://worker:1")
    where = f"the worker tcp://worker:1 (host {socket.gethostname()})"
    assert str(problem.value) == f"hydra.launcher.address: {where} lacks the module of_the_user; install it there"


def test_the_cause_of_a_failed_task_graph_is_named():
    problem = RuntimeError("Error during deserialization of the task graph")
    problem.__cause__ = ModuleNotFoundError("No module named 'mine'")
    assert _cause(problem) == "ModuleNotFoundError: No module named 'mine'"
