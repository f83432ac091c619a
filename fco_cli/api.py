"""Python interface (docs/python.md).

`run`, `sweep`, `path`, `glm`, `table1`, `theory`, `load`, `plot`, `export` and `torch_module`.

Arguments and output folders are those of the command line; finished runs are reused and interrupted ones resume.
Invalid input raises a ValueError with the message that the command would print.
"""

from __future__ import annotations

import logging
import os
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
    from sklearn.base import BaseEstimator

    from fco_cli.experiments import OnRound
    from fco_cli.reporting import RecordedPath, RecordedRun, Results, Theorems
    from fco_cli.reporting.records.glm import RecordedGlm
    from fco_cli.reporting.records.table1 import RecordedTable1
    from fco_cli.search.values import Value
    from hydra_plugins.fco_launcher import JobConfig

log = logging.getLogger(__name__)

MAX_WARNINGS = 10  # number of unreadable records that are logged


def run(*overrides: str, on_round: OnRound | None = None) -> RecordedRun:
    """Run one configuration, as `fco-run` does.

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run`, such as "task=lasso".
    on_round : callable, default=None
        Function that is called with the metrics of every evaluated round, a dictionary with the key "round", while the
        run proceeds. An exception that it raises ends the run. A finished run is not repeated and makes no calls.

    Returns
    -------
    record : RecordedRun
        The record, read from its folder: `config`, `result`, `final`, `curves`, `model`, `folder`.

    Examples
    --------
    >>> run("task=lasso", "algo=zhj").final["objective"]  # doctest: +SKIP
    """
    from fco_cli.config.calls import compose_call, require_single_run
    from fco_cli.experiments import RUN
    from fco_cli.reporting import read_record

    with _call_context():
        config = compose_call(overrides)
        require_single_run(config)
        return read_record(RUN.execute(config, on_round).folder)


def path(*overrides: str) -> RecordedPath:
    """Select the strength of a regularizer along its path, as `fco-run -m experiment=path` does (docs/path.md).

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run`, such as "task.path=heart.csv" and "path.folds=5".

    Returns
    -------
    record : RecordedPath
        The record, read from its folder: `result`, `table` (a row per strength), `weights`, `names`, `clients`,
        `calibration`, `models` (by rule, "min" and "1se"), `folder`.

    Examples
    --------
    >>> path("task.path=heart.csv", "task.client=hospital", "task.label=num>0").models["1se"]  # doctest: +SKIP
    """
    from fco_cli.config.calls import compose_experiment
    from fco_cli.experiments import PATH
    from fco_cli.reporting import RecordedPath

    with _call_context():
        return RecordedPath.read(PATH.execute(compose_experiment("path", overrides)).folder)


def glm(*overrides: str) -> RecordedGlm:
    """Estimate coefficients with standard errors, as `fco-run experiment=glm` does (docs/inference.md).

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run`, such as "task.path=heart.csv" and "glm.covariance=hc1".

    Returns
    -------
    record : RecordedGlm
        The record, read from its folder: `table`, `summary()`, `covariance(kind)`, `terms`, `meta`, `clients`,
        `forest()`, `result`, `folder`.

    Examples
    --------
    >>> print(glm("task.path=heart.csv", "task.client=hospital", "task.label=num>0").summary())  # doctest: +SKIP
    """
    from fco_cli.config.calls import compose_experiment
    from fco_cli.experiments import GLM
    from fco_cli.reporting.records.glm import RecordedGlm

    with _call_context():
        return RecordedGlm.read(GLM.execute(compose_experiment("glm", overrides)).folder)


def table1(*overrides: str) -> RecordedTable1:
    """Describe the rows of every client, as `fco-run experiment=table1` does (docs/inference.md).

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run`, such as "task.path=heart.csv" and "table1.min_cell=5".

    Returns
    -------
    record : RecordedTable1
        The record, read from its folder: `table`, `summary()`, `result`, `folder`.

    Examples
    --------
    >>> print(table1("task.path=heart.csv", "task.client=hospital", "task.label=num>0").summary())  # doctest: +SKIP
    """
    from fco_cli.config.calls import compose_experiment
    from fco_cli.experiments import TABLE1
    from fco_cli.reporting.records.table1 import RecordedTable1

    with _call_context():
        return RecordedTable1.read(TABLE1.execute(compose_experiment("table1", overrides)).folder)


def theory(*overrides: str) -> Theorems:
    """Check the paper's theorems by simulation, as `fco-theory` does.

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-theory`, such as "theory.seeds=4" and "profile=quick".

    Returns
    -------
    record : Theorems
        The record, read from its folder: `statements` (cells, violations and smallest slack by name), `table`, `grid`,
        `figure()`, `folder`.

    Examples
    --------
    >>> theory("profile=quick").statements  # doctest: +SKIP
    """
    from fco_cli.config.calls import compose_experiment
    from fco_cli.experiments import THEORY
    from fco_cli.reporting import Theorems

    with _call_context():
        return Theorems.read(THEORY.execute(compose_experiment("theory", overrides)).folder)


def sweep(*overrides: str) -> Results:
    """Run a sweep, as `fco-run -m` does.

    Parameters
    ----------
    *overrides : str
        Arguments of `fco-run -m`, such as "algo=zhj,fedmid".

    Returns
    -------
    results : Results
        All runs of the sweep, with `table()` and `rounds()`; `paths` holds those of "experiment=path", `theory` that
        of "experiment=theory".

    Raises
    ------
    SweepFailed
        If some runs failed; `load` returns the others.

    Examples
    --------
    >>> sweep("task=lasso", "algo=zhj,fedmid", "hparams/grid=paper").table()  # doctest: +SKIP
    """
    from fco_cli.config.calls import checked_overrides
    from fco_cli.config.compose import attribute_errors_to_overrides, initialized_hydra
    from fco_cli.reporting import collect

    started: list[bool] = []
    folders: list[Path] = []

    def job(config: DictConfig) -> None:
        raise UserError("hydra/launcher: must be fused (the default) in Python; use fco-run -m for other launchers")

    def run_jobs(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[Value | Exception]:
        started.append(True)
        return _run_jobs(jobs, overrides, folders, **options)

    job.sweep = run_jobs  # type: ignore[attr-defined]  # called by the fused launcher
    with _call_context(), attribute_errors_to_overrides(started, "overrides"):
        # the calling program configures logging
        texts = ["hydra/job_logging=none", *checked_overrides(overrides)]
        with initialized_hydra() as hydra:
            hydra.multirun("config", job, texts, with_log_configuration=False)
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
    from fco_cli.reporting import collect

    with as_python_errors():
        require(per in ("run", "round"), "per", per, "one of run, round")
        require(Path(folder).is_dir(), "folder", str(folder), "a folder of records")
        results = collect([Path(folder)])
        for path, reason in results.left_out[:MAX_WARNINGS]:
            log.warning("left out %s: %s", path, reason)
        table = results.table() if per == "run" else results.rounds()
        if table.empty:
            raise UserError(f"folder: {folder} has no finished records; run fco-run first, or give another folder")
        return table


def torch_module(item: Any) -> str:
    """Return the override "model.module=..." for a module of this process, for use with "model=torch" (docs/torch.md).

    Parameters
    ----------
    item : type, callable or torch.nn.Module
        A class or function that returns a module, or a module, whose parameters are the initial weights. Its code
        and, for a module, its weights are part of the run id.

    Returns
    -------
    override : str
        An argument of `run` and `sweep`.

    Examples
    --------
    >>> run("task=digits", "model=torch", torch_module(Net))  # doctest: +SKIP
    """
    from fco_cli.problem.models.torch_source import register_object

    with as_python_errors():
        return f"model.module={register_object(item)}"


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

    from fco_cli.reporting import Results, chosen_runs
    from fco_cli.reporting.figures.curves import check_columns, compares_rates, draw_lines, with_numbers

    if isinstance(results, Results):
        by_round = any(x in run.curves for study in results.studies for run in study.runs)
        results = results if compares_rates(x, by) else chosen_runs(results)
        results = results.rounds() if by_round else results.table()
    results = with_numbers(results, x, y)
    with as_python_errors():
        check_columns(results, x, y, by)
    axis = pyplot.subplots()[1] if ax is None else ax
    draw_lines(axis, results, x, y, by)
    return axis


def export(
    model: str | os.PathLike[str] | RecordedRun | RecordedGlm | BaseEstimator,
    file: str | os.PathLike[str],
    format: Literal["skops", "onnx", "json"] | None = None,
) -> Path:
    """Write a fitted model with its preparation for other software, as `fco-export` does (docs/export.md).

    Parameters
    ----------
    model : str, Path, record or estimator
        Folder of a record, return value of `run` or `glm`, or a fitted estimator of `fco_cli.estimators`. The models
        of a path are in its folders "min" and "1se".
    file : str or Path
        File to write.
    format : {"skops", "onnx", "json"}, default=None
        A scikit-learn Pipeline, an ONNX graph or JSON. By default the suffix of the file determines it.

    Returns
    -------
    path : Path
        The file.

    Examples
    --------
    >>> export(glm("task=heart"), "heart.onnx")  # doctest: +SKIP
    """
    from fco_cli.export import export as write

    with as_python_errors():
        return write(model, file, format)


@contextmanager
def _call_context() -> Iterator[None]:
    """Register the schemas, convert UserError to ValueError and close connections to sites."""
    from fco_cli.theory import register

    register()
    try:
        with as_python_errors():
            yield
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.close_connection()  # its threads would keep the process alive


def _run_jobs(
    jobs: list[JobConfig], overrides: list[list[str]], folders: list[Path], **options: Any
) -> list[Value | Exception]:
    """Run all jobs, append the folders of their records to `folders` and return a value for each."""
    from fco_cli.config.calls import refuse_dry_run
    from fco_cli.experiments import are_stackable, distinct_configs, execute_each, execute_stacks
    from fco_cli.search.values import values_of

    for config in distinct_configs(jobs):
        refuse_dry_run(config)
    if are_stackable(jobs):
        runs = execute_stacks(jobs, overrides, **options)
        folders += [folder for folder in runs.finished_folders if folder not in folders]
        return values_of(runs)
    values: list[Value | Exception] = []
    for finished in execute_each(jobs):
        folders.append(finished.folder)
        values.append(finished.value)
    return values
