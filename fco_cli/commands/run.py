"""fco-run: run one configuration and write its record; with -m, run a sweep."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fco_cli.commands.shell import (
    exit_process,
    handle_version_and_help,
    one_line_errors,
    print_line,
    register_plugins,
    run_hydra,
    table_console,
)
from fco_cli.commands.theory import print_theory
from fco_cli.errors import NotConverged, UserError
from fco_cli.help import help_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

    from fco_cli.experiments import Finished
    from fco_cli.search.record import SearchRecord
    from fco_cli.search.values import Value
    from hydra_plugins.fco_launcher import JobConfig


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
    if handle_version_and_help(_help) or _write_schemas(sys.argv[1:]):
        return
    try:
        run_hydra("fco-run", run, sweep, expect, print_searches, print_launched)
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.close_connection()


def _help() -> str:
    """Return the help text, with the options of the plug-ins given by `plugins` or FCO_PLUGINS."""
    from fco_cli.plugins import OVERRIDE, VARIABLE

    if os.environ.get(VARIABLE) or any(OVERRIDE.match(argument) for argument in sys.argv[1:]):
        register_plugins(sys.argv[1:])
    return help_text()


def _write_schemas(arguments: list[str]) -> bool:
    """Write the JSON schemas of the YAML groups if `--schema FOLDER` is given, and return True."""
    if "--schema" not in arguments:
        return False
    from pathlib import Path

    from fco_cli.config.json_schema import write_schemas

    with one_line_errors("fco-run"):
        if len(arguments) != 2 or arguments[0] != "--schema":
            raise UserError(f"--schema: got {' '.join(arguments)}; must be fco-run --schema FOLDER")
        for path in write_schemas(Path(arguments[1])):
            print_line(str(path))
    return True


def run(config: DictConfig) -> Value:
    """Run one experiment and print its summary."""
    from fco_cli.experiments import THEORY, kind_for, plan_of
    from hydra_plugins.fco_launcher import JobConfig

    kind = kind_for(config)
    if kind.is_stackable:
        _require_single_run(config)
        if config.dry_run:
            print(plan_of([JobConfig(config)], [[]], n_jobs=1, memory_mb=512, backend="local", address=None))
            return math.nan
    elif kind is not THEORY and config.profile.name == "paper":  # theory has its own seeds; others refuse profiles
        _require_one_seed(config)
    finished = kind.execute(config)
    value = _print_and_value(finished)
    _require_converged([finished])
    return value


def sweep(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[Value | Exception]:
    """Run a sweep, print its best configurations and return the value or the exception of every job."""
    from fco_cli.commands.tables import best_table
    from fco_cli.experiments import are_stackable, distinct_configs, execute_each, execute_stacks, plan_of
    from fco_cli.search.values import values_of

    if not are_stackable(jobs):
        values: list[Value | Exception] = []
        all_finished = []
        for finished in execute_each(jobs):
            values.append(_print_and_value(finished))
            all_finished.append(finished)
        _require_converged(all_finished)
        return values
    dry_runs = {config.dry_run for config in distinct_configs(jobs)}
    if len(dry_runs) > 1:
        raise UserError("dry_run: got several values, must be true or false")
    if dry_runs == {True}:
        print(plan_of(jobs, overrides, **options))
        return [math.nan] * len(jobs)
    all_runs = execute_stacks(jobs, overrides, **options)
    if any(_is_part_of_search(job) for job in jobs):
        return values_of(all_runs)
    if table := best_table(all_runs.finished_folders):
        table_console(160).print(table)
        if diverged := all_runs.diverged:
            print_line(f"{diverged} of {len(all_runs.unique)} runs diverged")
        if not_converged := all_runs.not_converged:
            print_line(f"{not_converged} of {len(all_runs.unique)} runs have not converged (see result.json)")
        print_line(f"next: fco-report {all_runs.runs[0].output_dir}")
    return values_of(all_runs)


def _is_part_of_search(job: JobConfig) -> bool:
    """Return True for a job of a batch; the sweeper prints its results when all batches are done."""
    return job.shared.search.until is not None


def print_searches(records: list[SearchRecord], folder_of: Callable[[list[str]], Path]) -> None:
    """Print the best settings of every search; `folder_of` returns the record of a run with some overrides."""
    from fco_cli.commands.tables import search_table

    for record in records:
        if record.best:
            table_console(160).print(search_table(record, folder_of))
            print_line(f"best: {record.folder / 'best.yaml'}")
        print_line(f"{record.describe()} ({record.folder / 'trials.csv'})")
    print_line(f"next: fco-report {records[0].folder.parent.parent}")


def print_launched(values: list[Any], output_dir: str) -> None:
    """Print the number of jobs that another launcher has run, which may print nothing itself, and the next command."""
    numbers = [value for value in values if isinstance(value, int | float) and not math.isnan(value)]
    diverged = sum(map(math.isinf, numbers))
    best = f", smallest value {min(numbers):.6g}" if len(numbers) > diverged else ""
    print_line(f"{len(values)} jobs: {len(values) - diverged} finished, {diverged} diverged{best}")
    print_line(f"next: fco-report {output_dir}")


def expect(job: JobConfig, **options: Any) -> None:
    """Start drawing the data of a job while the other jobs of its sweep are composed."""
    from fco_cli.config import Run
    from fco_cli.experiments import kind_for
    from fco_cli.sweeps import backends

    with suppress(Exception):  # errors are reported when all jobs are composed
        if kind_for(job.shared).is_stackable and not job.shared.dry_run and not _is_part_of_search(job):
            backends.expect(Run.of(job.config()), backends.Options(**options))


def _require_single_run(config: DictConfig) -> None:
    """Raise UserError if the configuration needs -m: an experiment, a profile or several seeds."""
    from hydra.core.hydra_config import HydraConfig

    if not _is_single_run():
        return
    if config.experiment is None:
        if (name := config.profile.name) != "paper":
            command = f"fco-run -m experiment=... profile={name}"
            raise UserError(
                f"profile: got {name}, which sets the scale of an experiment ({command}); must be paper for one run"
            )
        _require_one_seed(config)
        return
    name = config.experiment.name
    grid = HydraConfig.get().sweeper.params or {}
    sizes = " x ".join(f"{len(str(values).split(','))} {key}" for key, values in grid.items())
    raise UserError(
        f"experiment: {name} is a sweep; fco-run -m experiment={name} runs {sizes} (dry_run=true estimates the time)"
    )


def _is_single_run() -> bool:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    return HydraConfig.initialized() and HydraConfig.get().mode != RunMode.MULTIRUN


def _require_one_seed(config: DictConfig) -> None:
    if config.seeds is not None and _is_single_run():
        raise UserError(
            f"seeds: got {config.seeds}, which is several runs; use fco-run -m ..., or seed=... for one run"
        )


def _print_and_value(finished: Finished) -> Value:
    """Print the summary of an experiment and return its value."""
    from fco_cli.experiments import GLM, PATH, RUN, TABLE1, THEORY

    printers = {RUN: _print_run, PATH: _print_path, GLM: _print_glm, TABLE1: _print_table1, THEORY: print_theory}
    printers[finished.kind](finished)
    return finished.value


def _require_converged(all_finished: list[Finished]) -> None:
    """Raise NotConverged if a selected model of a path has not reached its tolerance."""
    folders = [finished.folder for finished in all_finished if finished.result.get("refits_not_converged")]
    if folders:
        raise NotConverged(
            f"a selected model has not converged to hparams.tolerance; raise hparams.most_rounds or hparams.tolerance "
            f"(record: {', '.join(map(str, folders))})"
        )


def _print_run(finished: Finished) -> None:
    from fco_cli.commands.run_summary import picture, summary_sentences, summary_table

    console, result = table_console(100), finished.result
    console.print(summary_table(result))
    for line in picture(finished.folder, result["main_metric"], console.options.ascii_only):
        print_line(line)
    for sentence in summary_sentences(result):
        print_line(sentence)
    print_line(f"record: {finished.folder}")
    print_line(f"next: fco-report {finished.report_folder}")


def _print_path(finished: Finished) -> None:
    from fco_cli.commands.tables import path_lines, path_table

    table_console(160).print(path_table(finished.result))
    for line in path_lines(finished.result):
        print_line(line)
    print_line(f"record: {finished.folder}")
    print_line(f"next: fco-report {finished.report_folder}")
    if (finished.folder / "1se" / "linear_model.json").exists():
        print_line(f"next: fco-predict {finished.folder / '1se'} NEW.csv")


def _print_glm(finished: Finished) -> None:
    from fco_cli.reporting.records.glm import summary_lines

    for line in summary_lines(finished.result):
        print_line(line)
    print_line(f"record: {finished.folder}")
    print_line(f"next: fco-report {finished.report_folder}")


def _print_table1(finished: Finished) -> None:
    from fco_cli.reporting.records.table1 import summary_lines

    for line in summary_lines(finished.result):
        print_line(line)
    print_line(f"record: {finished.folder}")


if __name__ == "__main__":
    program()
