"""Run a configuration into a folder, as fco-run would, without a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.problem.problem import Problem
from fco_cli.simulation.stop import Stop
from fco_cli.sweeps.problems import problem_of
from fco_cli.sweeps.runner import Outcome, execute


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
    """A run from overrides, as on the command line."""
    return _make_run


@pytest.fixture(scope="session")
def build_task() -> Callable[..., tuple[Run, Problem]]:
    """A run from overrides, and its problem."""

    def build(*overrides: str) -> tuple[Run, Problem]:
        run = _make_run(*overrides)
        return run, problem_of(run)

    return build


@pytest.fixture
def run_stack(tmp_path) -> Callable[..., list[Outcome]]:
    """Runs that differ only along the job axis, in one stack."""

    def run(stack: list[list[str]]) -> list[Outcome]:
        runs = [_make_run(*overrides, f"output_dir={tmp_path / 'outputs'}") for overrides in stack]
        with Stop() as stop:
            return execute(runs, Silent(), stop)

    return run
