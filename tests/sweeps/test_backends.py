"""Tests of the backends: workers that prepare for a run while the sweep is still being composed."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from fco_cli.algorithms.fedmid import FedMid
from fco_cli.config import Run, register
from fco_cli.errors import UserError
from fco_cli.simulation.process import Stop
from fco_cli.sweeps import backends
from fco_cli.sweeps.backends import Options, expect, on_dask, on_this_machine, session_object
from fco_cli.sweeps.stacks import Stack, StackResult

register()


@pytest.fixture
def run(tmp_path):
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=[f"output_dir={tmp_path}"]))


@pytest.fixture
def prepared(monkeypatch):
    runs = []
    monkeypatch.setattr(backends, "has_fork_server", lambda: True)
    monkeypatch.setattr(backends, "prepare_worker", runs.append)
    monkeypatch.setattr(backends, "count_prepared_workers", lambda: len(runs))
    return runs


def options(**given):
    return Options(**{"n_jobs": 2, "memory_mb": 512, "backend": "local", "address": None} | given)


def test_no_more_workers_are_prepared_than_n_jobs(run, prepared):
    for _ in range(3):
        expect(run, options())
    assert prepared == [run, run]


@pytest.mark.parametrize("given", [{"n_jobs": 1}, {"backend": "dask", "address": "tcp://x:1"}], ids=str)
def test_no_worker_is_prepared_without_local_workers(given, run, prepared):
    expect(run, options(**given))
    assert not prepared


def test_no_worker_is_prepared_without_a_fork_server(run, prepared, monkeypatch):
    monkeypatch.setattr(backends, "has_fork_server", lambda: False)
    expect(run, options())
    assert not prepared


def test_no_worker_is_prepared_for_a_finished_run(run, prepared):
    shutil.copytree(Path(__file__).parents[1] / "old_records" / "run", run.folder)
    expect(run, options())
    assert not prepared
    run.force = True
    expect(run, options())
    assert prepared == [run]


@pytest.mark.parametrize(("ready", "where"), [(0, "here"), (1, "there")])
def test_a_single_stack_runs_in_process_unless_a_worker_is_prepared(ready, where, run, monkeypatch):
    monkeypatch.setattr(backends, "count_prepared_workers", lambda: ready)
    monkeypatch.setattr(backends, "run_stack", lambda *_: "here")
    monkeypatch.setattr(backends, "run_in_processes", lambda *_: iter(["there"]))
    assert list(on_this_machine([Stack(0, [run])], options(), Stop(), print)) == [where]


@pytest.fixture
def session_run(run):
    """Return a run whose algorithm exists in this process alone, as a class of a notebook does."""

    @dataclass(kw_only=True)
    class OfSession(FedMid):
        pass

    run.algo = OfSession(name="fedmid")
    return run


@pytest.mark.parametrize("is_main", [False, True])
def test_runs_with_a_class_of_the_session_stay_in_this_process(session_run, is_main, monkeypatch, caplog):
    if is_main:
        type(session_run.algo).__module__, type(session_run.algo).__qualname__ = "__main__", "OfSession"
    done = []
    monkeypatch.setattr(backends, "run_stack", lambda stack, *_: done.append(stack.number) or StackResult())
    monkeypatch.setattr(backends, "run_in_processes", lambda *_: pytest.fail("other processes lack the class"))
    caplog.set_level("INFO", logger="fco_cli")
    stacks = [Stack(number, [session_run]) for number in (0, 1)]
    assert len(list(on_this_machine(stacks, options(), Stop(), lambda event: None))) == 2
    assert done == [0, 1]
    (line,) = caplog.messages
    assert line.startswith("running in this process: ")
    assert "OfSession is defined in this session" in line
    with pytest.raises(UserError, match=r"hydra\.launcher\.backend: got 'dask', must be local: .*OfSession is defined"):
        list(on_dask(stacks, options(backend="dask", address="tcp://x:1"), Stop(), lambda event: None))


def test_shipped_parts_are_no_objects_of_the_session(run):
    assert session_object([Stack(0, [run])]) == ""
