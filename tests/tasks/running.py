"""Run a configuration into a folder, as fco-run would, without a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module

from fco_cli.config import Run, register
from fco_cli.execute import Outcome, Stop, execute


class Silent:
    def on_start(self, *_: Any) -> None: ...

    def on_round(self, *_: Any) -> None: ...


def make_run(*overrides: str) -> Run:
    register()
    with initialize_config_module("fco_cli.conf", version_base="1.3"):
        return Run.of(compose("config", overrides=list(overrides)))


def run_all(folder: Path, stack: list[list[str]]) -> list[Outcome]:
    """Runs that differ only along the job axis, in one stack."""
    runs = [make_run(*overrides, f"output_dir={folder}") for overrides in stack]
    with Stop() as stop:
        return execute(runs, Silent(), stop)


def run_one(folder: Path, *overrides: str) -> Outcome:
    (outcome,) = run_all(folder, [list(overrides)])
    return outcome
