"""Python interface: `run`, `sweep`, `load` and `plot` (docs/python.md).

Arguments and output folders are those of the command line; finished runs are reused and interrupted ones resume.
Invalid input raises a ValueError with the message that the command would print.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fco_cli.errors import UserError, as_python_errors, require

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from omegaconf import DictConfig

    from fco_cli.reporting.records import RecordedRun
    from fco_cli.reporting.studies import Results
    from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger(__name__)

MAX_WARNINGS = 10  # number of unreadable records that are logged


def run(*overrides: str) -> RecordedRun:
    """Run one configuration, as `fco-run` does.

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run`, such as "task=lasso".

    Returns
    -------
    record : RecordedRun
        The record, read from its folder: `config`, `result`, `final`, `curves`, `model`, `folder`.

    Examples
    --------
    >>> run("task=lasso", "algo=zhj").final["objective"]  # doctest: +SKIP
    """
    from rich.console import Console

    from fco_cli.config import Run
    from fco_cli.config.compose import attribute_errors_to_overrides, compose
    from fco_cli.reporting.records import read_record
    from fco_cli.simulation.smoothness import why_diverged
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.display import RunProgress
    from fco_cli.sweeps.runner import execute

    with _call_context(), attribute_errors_to_overrides([], "overrides"):
        config = compose(_checked(overrides))
    with _call_context():
        _require_single_run(config)
        one = Run.of(config)
        with Stop() as stop, RunProgress(Console(stderr=True)) as progress:
            (outcome,) = execute([one], progress, stop)
        if outcome.was_done:
            log.info("%s: already done (force=true runs it again)", one.folder)
        if outcome.result["status"] == "diverged":
            log.warning(why_diverged(outcome.result))
        return read_record(one.folder)


def sweep(*overrides: str) -> Results:
    """Run a sweep, as `fco-run -m` does.

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run -m`, such as "algo=zhj,fedmid".

    Returns
    -------
    results : Results
        All runs of the sweep, with `table()` and `rounds()`; `paths` holds those of "experiment=path".

    Raises
    ------
    SweepFailed
        If some runs failed; `load` returns the others.

    Examples
    --------
    >>> sweep("task=lasso", "algo=zhj,fedmid", "hparams/grid=paper").table()  # doctest: +SKIP
    """
    from fco_cli.config.compose import attribute_errors_to_overrides, shipped
    from fco_cli.reporting.studies import collect

    started: list[bool] = []
    folders: list[Path] = []

    def job(config: DictConfig) -> None:
        raise UserError("hydra/launcher: must be fused (the default) in Python; use fco-run -m for other launchers")

    def run_jobs(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
        started.append(True)
        return _run_jobs(jobs, overrides, folders, **options)

    job.sweep = run_jobs  # type: ignore[attr-defined]  # called by the fused launcher
    with _call_context(), attribute_errors_to_overrides(started, "overrides"), shipped() as hydra:
        no_logging = ["hydra/job_logging=none"]  # the calling program configures logging
        hydra.multirun("config", job, [*no_logging, *_checked(overrides)], with_log_configuration=False)
    return collect(folders)


def load(folder: str | Path, per: Literal["run", "round"] = "run") -> pd.DataFrame:
    """Load the finished runs below a folder.

    Parameters
    ----------
    folder : str or Path
        Folder of records, such as "outputs".
    per : {"run", "round"}, default="run"
        A row per run, or per evaluated round of every run.

    Returns
    -------
    table : DataFrame
        Metrics, and every configuration key under its dotted name ("hparams.client_lr").

    Examples
    --------
    >>> load("outputs").groupby(["algo", "hparams.client_lr"])["objective"].median()  # doctest: +SKIP
    """
    from fco_cli.reporting.studies import collect

    with as_python_errors():
        require(per in ("run", "round"), "per", per, "one of run, round")
        require(Path(folder).is_dir(), "folder", str(folder), "a folder of records")
        results = collect([Path(folder)])
        for path, reason in results.left_out[:MAX_WARNINGS]:
            log.warning("left out %s: %s", path, reason)
        table = results.table() if per == "run" else results.rounds()
        if table.empty:
            raise UserError(f"folder: {folder} has no finished records")
        return table


def plot(
    results: Results | pd.DataFrame, x: str = "round", y: str = "objective", by: str = "algo", ax: Axes | None = None
) -> Axes:
    """Plot a metric: the median over seeds, with a band of their range.

    Parameters
    ----------
    results : Results or DataFrame
        Return value of `sweep` or `load`. For `Results`, every algorithm is drawn at its selected learning rates and
        options, as in a report, unless `x` or `by` is one of these.
    x, y : str, default="round", "objective"
        Numeric columns. For `Results`, the table of rounds is used if `x` is measured by round.
    by : str, default="algo"
        Column with a line per value; runs that differ in other settings get separate lines.
    ax : Axes, default=None
        Axes to draw on. By default a new figure is created.

    Returns
    -------
    ax : Axes
        The axes.

    Examples
    --------
    >>> plot(sweep("task=lasso", "algo=feddualavg,fedmid", "seeds=3"), y="f1")  # doctest: +SKIP
    """
    from matplotlib import pyplot

    from fco_cli.reporting.lines import check_columns, compares_rates, draw_lines
    from fco_cli.reporting.select import chosen_runs
    from fco_cli.reporting.studies import Results

    if isinstance(results, Results):
        by_round = any(x in run.curves for study in results.all_studies for run in study.runs)
        results = results if compares_rates(x, by) else chosen_runs(results)
        results = results.rounds() if by_round else results.table()
    with as_python_errors():
        check_columns(results, x, y, by)
    axis = pyplot.subplots()[1] if ax is None else ax
    draw_lines(axis, results, x, y, by)
    return axis


@contextmanager
def _call_context() -> Iterator[None]:
    """Register the schemas, convert UserError to ValueError and close connections to sites."""
    from fco_cli import theory

    theory.register()
    try:
        with as_python_errors():
            yield
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.close_connection()  # its threads would keep the process alive


def _checked(overrides: tuple[str, ...]) -> list[str]:
    """Return the overrides, quoted for Hydra; raise UserError for invalid ones."""
    from fco_cli.config.overrides import check_overrides, quoted

    for override in overrides:
        require(isinstance(override, str), "overrides", override, "strings, such as 'task=lasso'")
    texts = [quoted(override) for override in overrides]
    check_overrides(texts)
    return texts


def _require_single_run(config: DictConfig) -> None:
    """Raise UserError if the configuration describes several runs or a dry run."""
    if config.experiment is not None or config.path is not None or config.theory is not None:
        name = "path" if config.path is not None else "theory" if config.theory is not None else config.experiment.name
        raise UserError(f'experiment: {name} is a sweep; call sweep("experiment={name}")')
    if config.seeds is not None:
        raise UserError(
            f"seeds: got {config.seeds}, which is several runs; call sweep(...), or set seed=... for one run"
        )
    _refuse_dry_run(config)


def _refuse_dry_run(config: DictConfig) -> None:
    """Raise UserError for dry_run=true."""
    require(not config.dry_run, "dry_run", True, "false in Python; use fco-run -m to estimate the work of a sweep")


def _run_jobs(
    jobs: list[JobConfig], overrides: list[list[str]], folders: list[Path], **options: Any
) -> list[float | Exception]:
    """Run all jobs, append the folders of their records to `folders` and return a value for each."""
    from rich.console import Console

    from fco_cli.config import Run
    from fco_cli.path.record import run_path
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.display import SweepProgress
    from fco_cli.sweeps.run import Sweep

    # jobs that share a configuration differ in numbers only
    configs = list({id(job.shared): job.shared for job in jobs}.values())
    for config in configs:
        _refuse_dry_run(config)
        require(config.theory is None, "experiment", "theory", "another one; use the command fco-theory")
    if any(config.path is not None for config in configs):
        values = []
        for one in (Run.of(job.config()) for job in jobs):
            with Stop() as stop:
                values.append(run_path(one, stop)["chosen"]["min"]["cv_loss"])
            folders.append(one.folder)
        return values
    all_runs = Sweep(jobs, overrides, **options)
    all_runs.run(SweepProgress(Console(stderr=True)))
    folders += all_runs.finished_folders
    return all_runs.values()
