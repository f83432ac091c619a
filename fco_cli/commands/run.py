"""fco-run: run one configuration and write its record; with -m, run a sweep."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fco_cli.commands.shell import exit_process, handle_version_and_help, one_line_errors, run_hydra
from fco_cli.commands.streams import print_line, table_console
from fco_cli.errors import UserError
from fco_cli.help import help_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fco_cli.sweeps.run import Sweep
    from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger("fco")


def program() -> None:
    """Run the command line and exit; entry point of the program."""
    with one_line_errors("fco-run"):
        if {"-m", "--multirun"} & set(sys.argv[1:]):
            from fco_cli.sweeps.starting import preload_workers

            with preload_workers():
                main()
        else:
            main()
    exit_process("fco-run")


def main() -> None:
    """Run the command line and close connections to sites."""
    if handle_version_and_help(help_text):
        return
    try:
        run_hydra("fco-run", run, sweep, expect)
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.close_connection()


def run(config: DictConfig) -> float:
    """Run one configuration and print its summary."""
    from rich.console import Console

    from fco_cli.commands.tables import final_table
    from fco_cli.config import Run
    from fco_cli.simulation.smoothness import why_diverged
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.display import RunProgress
    from fco_cli.sweeps.run import Sweep
    from fco_cli.sweeps.runner import execute
    from hydra_plugins.fco_launcher import JobConfig

    if config.theory is not None:
        return _theory(config)
    if config.path is not None:
        return _path(config)
    _require_single_run(config)
    one = Run.of(config)
    if config.dry_run:
        return _print_plan(Sweep([JobConfig(config)], [[]], n_jobs=1, memory_mb=512, backend="local", address=None))
    log.info(one.describe())
    with Stop() as stop, RunProgress(Console(stderr=True)) as progress:
        (outcome,) = execute([one], progress, stop)
    if outcome.was_done:
        log.info("already done (force=true runs it again)")
    if outcome.result["status"] == "diverged":
        log.warning(why_diverged(outcome.result))
    if verdict := outcome.result.get("convergence"):
        log.info(verdict["line"])
    table_console().print(final_table(outcome.result))
    print_line(f"record: {one.folder}")
    print_line(f"next: fco-report {one.output_dir / one.task.name}")
    return outcome.result["final"]["objective"]


def sweep(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
    """Run a sweep, print its best configurations and return the value or the exception of every job."""
    # jobs that share a configuration differ in numbers only
    configs = list({id(job.shared): job.shared for job in jobs}.values())
    if any(config.theory is not None or config.path is not None for config in configs):
        return [run(job.config()) for job in jobs]  # cannot be stacked
    if len({config.dry_run for config in configs}) > 1:
        raise UserError("dry_run: got several values, must be true or false")
    from rich.console import Console

    from fco_cli.commands.tables import best_table
    from fco_cli.sweeps.display import SweepProgress
    from fco_cli.sweeps.run import Sweep

    all_runs = Sweep(jobs, overrides, **options)
    if configs[0].dry_run:
        return [_print_plan(all_runs)] * len(jobs)
    progress = SweepProgress(Console(stderr=True))
    all_runs.run(progress)
    if table := best_table(all_runs.finished_folders):
        table_console(160).print(table)
        if diverged := all_runs.diverged:
            print_line(f"{diverged} of {len(all_runs.unique)} runs diverged")
        if not_converged := all_runs.not_converged:
            print_line(f"{not_converged} of {len(all_runs.unique)} runs have not converged (see result.json)")
        print_line(f"next: fco-report {all_runs.runs[0].output_dir}")
    return all_runs.values()


def expect(job: JobConfig, **options: Any) -> None:
    """Start drawing the data of a job while the other jobs of its sweep are composed."""
    from fco_cli.config import Run
    from fco_cli.sweeps import backends

    config = job.shared
    with suppress(Exception):  # errors are reported when all jobs are composed
        if config.theory is None and config.path is None and not config.dry_run:
            backends.expect(Run.of(job.config()), backends.Options(**options))


def _print_plan(runs: Sweep) -> float:
    """Print the runs that are missing and an estimate of their duration; return NaN."""
    from fco_cli.sweeps.plan import describe_plan

    print(describe_plan(runs.missing, len(runs.ended.results), runs.options))
    return math.nan


def _require_single_run(config: DictConfig) -> None:
    """Raise UserError if the configuration needs -m: an experiment, a profile or several seeds."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized() or HydraConfig.get().mode == RunMode.MULTIRUN:
        return
    if config.experiment is None:
        if (name := config.profile.name) != "paper":
            command = f"fco-run -m experiment=... profile={name}"
            raise UserError(
                f"profile: got {name}, which sets the scale of an experiment ({command}); must be paper for one run"
            )
        if config.seeds is not None:
            raise UserError(
                f"seeds: got {config.seeds}, which is several runs; use fco-run -m ..., or seed=... for one run"
            )
        return
    name = config.experiment.name
    grid = HydraConfig.get().sweeper.params or {}
    sizes = " x ".join(f"{len(str(values).split(','))} {key}" for key, values in grid.items())
    raise UserError(
        f"experiment: {name} is a sweep; fco-run -m experiment={name} runs {sizes} (dry_run=true estimates the time)"
    )


def _theory(config: DictConfig) -> float:
    """Run experiment=theory as fco-theory does."""
    from fco_cli.commands.theory import check

    if config.dry_run:
        raise UserError("dry_run: must be false for experiment=theory")
    check(config)
    return math.nan


def _path(config: DictConfig) -> float:
    """Run experiment=path and print the selected models."""
    from fco_cli.commands.tables import path_lines, path_table
    from fco_cli.config import Run
    from fco_cli.path.record import run_path
    from fco_cli.simulation.stop import Stop

    if config.dry_run:
        raise UserError("dry_run: must be false for experiment=path")
    if config.profile.name != "paper":
        raise UserError(f"profile: got {config.profile.name}, must be paper for experiment=path")
    one = Run.of(config)
    with Stop() as stop:
        result = run_path(one, stop)
    table_console(160).print(path_table(result))
    for line in path_lines(result):
        print_line(line)
    print_line(f"record: {one.folder}")
    next_commands = [f"fco-report {one.output_dir}"]
    if (one.folder / "1se" / "linear_model.json").exists():
        next_commands.append(f"fco-predict {one.folder / '1se'} NEW.csv")
    for command in next_commands:
        print_line(f"next: {command}")
    return result["chosen"]["min"]["cv_loss"]


if __name__ == "__main__":
    program()
