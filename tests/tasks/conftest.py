"""Fixtures: runs and problems from overrides, and a user's data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.problem.problem import Problem
from fco_cli.simulation.execute import Outcome, execute
from fco_cli.simulation.problems import problem_of
from fco_cli.simulation.process import Stop


class Silent:
    def on_start(self, *_: Any) -> None: ...

    def on_round(self, *_: Any) -> None: ...

    def on_outcome(self, *_: Any) -> None: ...


def _make_run(*overrides: str) -> Run:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=list(overrides)))


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """Return a run from command-line overrides."""
    return _make_run


@pytest.fixture(scope="session")
def build_task() -> Callable[..., tuple[Run, Problem]]:
    """Return a run from overrides, and its problem."""

    def build(*overrides: str) -> tuple[Run, Problem]:
        run = _make_run(*overrides)
        return run, problem_of(run)

    return build


@pytest.fixture
def run_stack(tmp_path) -> Callable[..., list[Outcome]]:
    """Run several jobs that differ only along the job axis in one stack."""

    def run(stack: list[list[str]]) -> list[Outcome]:
        runs = [_make_run(*overrides, f"output_dir={tmp_path / 'outputs'}") for overrides in stack]
        with Stop() as stop:
            return execute(runs, Silent(), stop)

    return run


@pytest.fixture
def data(tmp_path) -> Path:
    """Write a data file with five clients of unequal size and features on different scales."""
    random = np.random.default_rng(1)
    x = random.standard_normal((60, 3)) * [1, 10, 100] + [0, 5, -7]
    client = np.repeat(["a", "b", "c", "d", "e"], [4, 20, 11, 15, 10])
    np.savez(tmp_path / "d.npz", x=x, y=random.integers(0, 2, 60), client=client)
    return tmp_path / "d.npz"


@pytest.fixture
def build(build_task):
    """Return the task on the user's rows, and its problem."""

    def build(path: Path, *overrides: str):
        run, problem = build_task("task=custom", f"task.path={path}", *overrides)
        return run.task, problem

    return build


@pytest.fixture(scope="session")
def with_changes() -> Callable[..., Path]:
    """Return a copy of a file of arrays with some of them replaced."""

    def change(path: Path, **changes: Any) -> Path:
        np.savez(path, **(dict(np.load(path)) | changes))
        return path

    return change
