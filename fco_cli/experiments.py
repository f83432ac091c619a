"""Kinds of experiments: one run, a path, inference (`experiment=glm`), table 1 and a check of the theorems.

A kind checks a configuration, executes it and returns its result. The Python interface and the commands call the same
functions; the commands also print.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fco_cli.errors import UserError, require

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fco_cli.search.values import Value
    from fco_cli.sweeps.run import Sweep
    from fco_cli.tracking import Tracking
    from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger(__name__)

OnRound = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Finished:
    """Result of an experiment, and its record."""

    kind: Kind
    result: dict[str, Any]  # content of result.json
    folder: Path  # of the record
    report_folder: Path  # argument of fco-report
    value: Value = math.nan  # number, or numbers, that an optimizing sweeper optimizes


class Kind(ABC):
    """Kind of an experiment."""

    is_stackable: ClassVar[bool] = False  # True if the experiments of a sweep run together, as stacks

    @abstractmethod
    def execute(self, config: DictConfig) -> Finished:
        """Run the experiment or reuse its record; raise UserError for an invalid configuration."""


class SingleRun(Kind):
    """One run of an algorithm on a task."""

    is_stackable = True

    def execute(self, config: DictConfig, on_round: OnRound | None = None) -> Finished:
        """Run an algorithm; `on_round` is called with the metrics of every evaluated round while it runs."""
        from rich.console import Console

        from fco_cli.config import Run
        from fco_cli.search.values import value_of
        from fco_cli.simulation.display import RoundCalls, RunProgress
        from fco_cli.simulation.execute import execute
        from fco_cli.simulation.process import Stop
        from fco_cli.simulation.smoothness import why_diverged

        run = Run.of(config)
        allowed = "null; only hydra/sweeper=search with the launcher `fused` sets it"
        require(run.pause_at is None, "search.until", run.pause_at, allowed)
        log.info(run.describe())
        with Stop() as stop, RunProgress(Console(stderr=True)) as progress:
            observer = progress if on_round is None else RoundCalls(progress, on_round)
            (outcome,) = execute([run], observer, stop)
        if outcome.was_done:
            log.info("already done (force=true runs it again)")
        if outcome.result["status"] == "diverged":
            log.warning(why_diverged(outcome.result))
        verdict, updates = outcome.result.get("convergence"), outcome.result.get("updates")
        if updates and updates["biased"] and (verdict is None or verdict["converged"]):
            log.info(updates["line"])
        if (tracking := tracking_of([config])).is_active:
            from fco_cli.reporting.tracked import tracked_run
            from fco_cli.tracking import Sweep as TrackedSweep
            from fco_cli.tracking import Upload

            upload = Upload(tracking, TrackedSweep.of([run.task.name], [run.run_id]))
            upload.add([tracked_run(run.folder)])
            upload.close()
        report_folder = run.output_dir / run.task.name
        return Finished(self, outcome.result, run.folder, report_folder, value_of(run, outcome.result))


class RegularizationPath(Kind):
    """Path of strengths, cross-validated, and the models that it selects (docs/path.md)."""

    def execute(self, config: DictConfig) -> Finished:
        from fco_cli.config import PathRun
        from fco_cli.path.record import run_path
        from fco_cli.simulation.process import Stop

        _refuse_dry_run(config, "path")
        _require_paper_profile(config, "path")
        run = PathRun.of(config)
        with Stop() as stop:
            result = run_path(run, stop)
        return Finished(self, result, run.folder, run.output_dir, result["chosen"]["min"]["cv_loss"])


class Inference(Kind):
    """Coefficients with standard errors, tests and intervals (docs/inference.md)."""

    def execute(self, config: DictConfig) -> Finished:
        from fco_cli.config import GlmRun
        from fco_cli.inference.record import run_glm
        from fco_cli.simulation.process import Stop

        _refuse_dry_run(config, "glm")
        _require_paper_profile(config, "glm")
        run = GlmRun.of(config)
        with Stop() as stop:
            result = run_glm(run, stop)
        return Finished(self, result, run.folder, run.output_dir, result["deviance"])


class Description(Kind):
    """Table 1: the rows of every client (docs/inference.md)."""

    def execute(self, config: DictConfig) -> Finished:
        from fco_cli.config import Table1Run
        from fco_cli.simulation.process import Stop
        from fco_cli.table1.record import run_table1

        _refuse_dry_run(config, "table1")
        _require_paper_profile(config, "table1")
        run = Table1Run.of(config)
        with Stop() as stop:
            result = run_table1(run, stop)
        return Finished(self, result, run.folder, run.output_dir)


class TheoremCheck(Kind):
    """Check of the paper's theorems on a grid of small problems."""

    def execute(self, config: DictConfig) -> Finished:
        from omegaconf import OmegaConf

        from fco_cli.config.run import check_profile, typed_group
        from fco_cli.theory.run import check_theorems
        from fco_cli.theory.statements import Grid

        _refuse_dry_run(config, "theory")
        check_profile(config)
        is_valid = OmegaConf.get_type(config, "theory") is Grid
        require(is_valid, "theory", config.theory, "null; experiment=theory sets it")
        folder, grid = Path(config.output_dir), cast(Grid, typed_group(config, "theory"))
        result = check_theorems(grid, OmegaConf.to_yaml(config.theory, resolve=True), folder, config.force)
        return Finished(self, result, folder, folder)


RUN, PATH, GLM, TABLE1, THEORY = SingleRun(), RegularizationPath(), Inference(), Description(), TheoremCheck()
KINDS: dict[str, Kind] = {"run": RUN, "path": PATH, "glm": GLM, "table1": TABLE1, "theory": THEORY}


def _refuse_dry_run(config: DictConfig, experiment: str) -> None:
    if config.dry_run:
        raise UserError(f"dry_run: must be false for experiment={experiment}")
    require(not tracking_of([config]).is_active, "tracking", config.tracking.name, f"none with experiment={experiment}")


def _require_paper_profile(config: DictConfig, experiment: str) -> None:
    if config.profile.name != "paper":
        raise UserError(f"profile: got {config.profile.name}, must be paper for experiment={experiment}")


def kind_for(config: DictConfig) -> Kind:
    """Return the kind of the experiment that a configuration describes."""
    from fco_cli.config import kind_of

    return KINDS[kind_of(config)]


def distinct_configs(jobs: list[JobConfig]) -> list[DictConfig]:
    """Return the configurations of the jobs of a sweep; jobs that share one differ in numbers only."""
    return list({id(job.shared): job.shared for job in jobs}.values())


def are_stackable(jobs: list[JobConfig]) -> bool:
    """Return True if the jobs of a sweep run as stacks, and False if they run one by one."""
    return all(kind_for(config).is_stackable for config in distinct_configs(jobs))


def execute_each(jobs: Iterable[JobConfig]) -> Iterator[Finished]:
    """Run the jobs of a sweep one by one."""
    for job in jobs:
        config = job.config()
        yield kind_for(config).execute(config)


def execute_stacks(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> Sweep:
    """Run the jobs of a sweep as stacks and return the sweep; `options` are those of hydra.launcher."""
    from rich.console import Console

    from fco_cli.sweeps.run import Sweep, SweepProgress

    tracking = tracking_of(distinct_configs(jobs))
    sweep = Sweep(jobs, overrides, **options)
    if not tracking.is_active:
        sweep.run(SweepProgress(Console(stderr=True)))
        return sweep
    from fco_cli.reporting.tracked import sweep_figures, tracked_run
    from fco_cli.tracking import Sweep as TrackedSweep
    from fco_cli.tracking import Upload

    upload = Upload(tracking, TrackedSweep.of(sweep.names, sweep.unique))
    sweep.run(SweepProgress(Console(stderr=True)), lambda folders: upload.add(map(tracked_run, folders)))
    upload.close(lambda: sweep_figures(sweep.finished_folders))
    return sweep


def tracking_of(configs: list[DictConfig]) -> Tracking:
    """Return the tracker of some configurations; raise UserError if they differ, or if its package is missing."""
    from fco_cli.config.run import typed_group

    first, *others = [typed_group(config, "tracking") for config in configs]
    require(all(other == first for other in others), "tracking", "several values", "the same for all runs of a sweep")
    first.check()
    return first


def plan_of(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> str:
    """Return the number of missing runs of a sweep and an estimate of their duration and memory."""
    from fco_cli.sweeps.run import Sweep, describe_plan

    sweep = Sweep(jobs, overrides, **options)
    return describe_plan(sweep.missing, len(sweep.outcome.results), sweep.options)
