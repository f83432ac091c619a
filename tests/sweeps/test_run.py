"""Tests of the progress display."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace

import pytest
from rich.console import Console

from fco_cli.simulation.display import COMPILING, RunProgress, duration, on_compilation
from fco_cli.sweeps.run import SweepProgress
from fco_cli.sweeps.stacks import Event, Stack

TIMES = {0.4: "0 s", 89: "89 s", 95: "2 min", 1363: "23 min", 6006: "1 h 40 min"}


@pytest.mark.parametrize("seconds", TIMES)
def test_duration(seconds):
    assert duration(seconds) == TIMES[seconds]


def test_compilation_is_noticed_and_loading_is_not():
    from numba.core import event

    messages: list[str] = []
    with on_compilation(lambda: messages.append(COMPILING)):
        with event.trigger_event("numba:run_pass"):
            assert messages == []
        with event.trigger_event("numba:compile"):
            assert messages == [COMPILING]
    with event.trigger_event("numba:compile"):
        assert messages == [COMPILING]  # the listener is removed


def test_a_resumed_run_logs_its_round(caplog):
    caplog.set_level(logging.INFO)
    run = SimpleNamespace(task=SimpleNamespace(main_metric="f1"))
    simulation = SimpleNamespace(running=[SimpleNamespace(history={"f1": [0.5]})], round=31)
    with RunProgress(Console(quiet=True)) as progress:
        progress.on_start([run], 100)
        progress.on_round(simulation)
        progress.on_round(simulation)
    assert [record.getMessage() for record in caplog.records] == ["continued from round 30"]


def test_refused_runs_are_counted_separately(caplog):
    caplog.set_level("INFO")
    progress = SweepProgress(Console(file=io.StringIO()))
    with progress.show([Stack(0, [None, None])]):
        for kind in ("round", "refused", "refused"):
            progress.post(Event(0, kind, running=2))
    assert caplog.messages[-1] == "0 finished, 0 running, 0 diverged, 2 refused"
