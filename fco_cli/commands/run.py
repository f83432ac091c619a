"""fco-run: a configuration becomes a problem, the problem a simulation, the simulation a record; with -m, many."""

from __future__ import annotations

import logging
import math
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fco_cli.commands.shell import answered, leave, one_line_endings, run_hydra
from fco_cli.commands.streams import say, table_console
from fco_cli.errors import UserError
from fco_cli.help import help_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fco_cli.sweeps.run import Sweep
    from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger("fco")


def program() -> None:
    """Run the command and end the process."""
    with one_line_endings("fco-run"):
        if {"-m", "--multirun"} & set(sys.argv[1:]):
            from fco_cli.sweeps.starting import loading_early

            with loading_early():
                main()
        else:
            main()
    leave("fco-run")


def main() -> None:
    if answered(help_text):
        return
    try:
        run_hydra("fco-run", run, sweep, expect)
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.hang_up()


def run(config: DictConfig) -> float:
    """The story of one run."""
    from rich.console import Console

    from fco_cli.commands.tables import final_table
    from fco_cli.config import Run
    from fco_cli.simulation.smoothness import why_diverged
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.run import Sweep
    from fco_cli.sweeps.runner import execute
    from fco_cli.sweeps.screen import RunProgress
    from hydra_plugins.fco_launcher import JobConfig

    if config.theory is not None:
        return _theory(config)
    if config.path is not None:
        return _path(config)
    _refuse_experiment_alone(config)
    one = Run.of(config)
    if config.dry_run:
        return _tell(Sweep([JobConfig(config)], [[]], n_jobs=1, memory_mb=512, backend="local", address=None))
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
    say(f"record: {one.folder}")
    say(f"next: fco-report {one.output_dir / one.task.name}")
    return outcome.result["final"]["objective"]


def sweep(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
    """The story of a sweep; Hydra wants a value for every job, or what it failed with."""
    configs = list({id(job.shared): job.shared for job in jobs}.values())  # jobs differ from these in numbers only
    if any(config.theory is not None or config.path is not None for config in configs):
        return [run(job.config()) for job in jobs]  # nothing that could be stacked
    if len({config.dry_run for config in configs}) > 1:
        raise UserError("dry_run: got several values: true or false")
    from rich.console import Console

    from fco_cli.commands.tables import best_table
    from fco_cli.sweeps.run import Sweep
    from fco_cli.sweeps.screen import SweepProgress

    all_runs = Sweep(jobs, overrides, **options)
    if configs[0].dry_run:
        return [_tell(all_runs)] * len(jobs)
    progress = SweepProgress(Console(stderr=True))
    all_runs.run(progress)
    if table := best_table(all_runs.finished_folders):
        table_console(160).print(table)
        if diverged := all_runs.diverged:
            say(f"{diverged} of {len(all_runs.unique)} runs diverged")
        if lagging := all_runs.not_converged:
            say(f"{lagging} of {len(all_runs.unique)} runs have not converged (result.json)")
        say(f"next: fco-report {all_runs.runs[0].output_dir}")
    return all_runs.values()


def expect(job: JobConfig, **options: Any) -> None:
    """A job of a sweep whose other jobs are still being composed: its data may be drawn meanwhile."""
    from fco_cli.config import Run
    from fco_cli.sweeps import backends

    config = job.shared
    with suppress(Exception):  # what is wrong is said when all jobs are there
        if config.theory is None and config.path is None and not config.dry_run:
            backends.expect(Run.of(job.config()), backends.Options(**options))


def _tell(runs: Sweep) -> float:
    """The dry run: what would be done, and how long it would take."""
    from fco_cli.sweeps.plan import describe_plan

    print(describe_plan(runs.missing, len(runs.ended.results), runs.options))
    return math.nan


def _refuse_experiment_alone(config: DictConfig) -> None:
    """An experiment without -m would be one run of many, and not one that the paper speaks of."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized() or HydraConfig.get().mode == RunMode.MULTIRUN:
        return
    if config.experiment is None:
        if (name := config.profile.name) != "paper":
            how = f"how much of an experiment is run: fco-run -m experiment=... profile={name}"
            raise UserError(f"profile: got {name}, which says {how}; must be paper for a single run")
        if config.seeds is not None:
            raise UserError(f"seeds: got {config.seeds}, which is several runs: fco-run -m ..., or seed=... for one")
        return
    name = config.experiment.name
    grid = HydraConfig.get().sweeper.params or {}
    sizes = " x ".join(f"{len(str(values).split(','))} {key}" for key, values in grid.items())
    raise UserError(
        f"experiment: {name} is a sweep: fco-run -m experiment={name} runs {sizes} (with dry_run=true: says how long)"
    )


def _theory(config: DictConfig) -> float:
    """experiment=theory is not one run but many small ones, and has a command of its own."""
    from fco_cli.commands.theory import check

    if config.dry_run:
        raise UserError("dry_run: experiment=theory cannot be planned, only run")
    check(config)
    return math.nan


def _path(config: DictConfig) -> float:
    """experiment=path: many models, and two that are chosen."""
    from fco_cli.commands.tables import path_lines, path_table
    from fco_cli.config import Run
    from fco_cli.path.record import recorded_selection
    from fco_cli.simulation.stop import Stop

    if config.dry_run:
        raise UserError("dry_run: experiment=path cannot be planned, only run")
    if config.profile.name != "paper":
        raise UserError(f"profile: got {config.profile.name}, must be paper: a path has no other scale")
    one = Run.of(config)
    with Stop() as stop:
        result = recorded_selection(one, stop)
    table_console(160).print(path_table(result))
    for line in path_lines(result):
        say(line)
    say(f"record: {one.folder}")
    steps = [f"fco-report {one.output_dir}"]
    if (one.folder / "1se" / "linear_model.json").exists():
        steps.append(f"fco-predict {one.folder / '1se'} NEW.csv")
    for step in steps:
        say(f"next: {step}")
    return result["chosen"]["min"]["cv_loss"]


if __name__ == "__main__":
    program()
