"""From Python: run, sweep, load and plot (docs/python.md).

The words are those of the command line, and so is all else: the same configuration makes the same record in the same
folder, is found there when it is done and continued from its checkpoint when it is not. What is wrong is a
ValueError of one line.
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

NAMED = 10  # records that cannot be read


def run(*words: str) -> RecordedRun:
    """One run, as `fco-run` makes it: `run("task=lasso", "algo=zhj").final["objective"]`."""
    from rich.console import Console

    from fco_cli.config import Run
    from fco_cli.config.compose import blaming_words, compose
    from fco_cli.reporting.records import read_record
    from fco_cli.simulation.smoothness import why_diverged
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.runner import execute
    from fco_cli.sweeps.screen import RunProgress

    with _called(), blaming_words([], "words"):
        config = compose(_checked(words))
    with _called():
        _refuse_several(config)
        one = Run.of(config)
        with Stop() as stop, RunProgress(Console(stderr=True)) as progress:
            (outcome,) = execute([one], progress, stop)
        if outcome.was_done:
            log.info("%s: already done (force=true runs it again)", one.folder)
        if outcome.result["status"] == "diverged":
            log.warning(why_diverged(outcome.result))
        return read_record(one.folder)


def sweep(*words: str) -> Results:
    """Many runs, as `fco-run -m` makes them: `sweep("task=lasso", "algo=zhj,fedmid", "hparams/grid=paper").table()`.

    With "experiment=path" it has `paths`. A sweep of which some runs failed raises SweepFailed; `load` has the others.
    """
    from fco_cli.config.compose import blaming_words, shipped
    from fco_cli.reporting.studies import collect

    begun: list[bool] = []
    folders: list[Path] = []

    def job(config: DictConfig) -> None:
        raise UserError("hydra/launcher: must be fused, the default, in Python; fco-run -m takes others")

    def fused(jobs: list[JobConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
        begun.append(True)
        return _swept(jobs, overrides, folders, **options)

    job.sweep = fused  # type: ignore[attr-defined]  # the fused launcher looks for it
    with _called(), blaming_words(begun, "words"), shipped() as hydra:
        quietly = ["hydra/job_logging=none"]  # how a program logs is its own affair
        hydra.multirun("config", job, [*quietly, *_checked(words)], with_log_configuration=False)
    return collect(folders)


def load(folder: str | Path, per: Literal["run", "round"] = "run") -> pd.DataFrame:
    """The finished runs below a folder, each a row with its results and its whole configuration (hparams.client_lr),
    or a row for every evaluated round."""
    from fco_cli.reporting.studies import collect

    with as_python_errors():
        require(per in ("run", "round"), "per", per, "one of run, round")
        require(Path(folder).is_dir(), "folder", str(folder), "a folder of records")
        results = collect([Path(folder)])
        for place, reason in results.left_out[:NAMED]:
            log.warning("left out %s: %s", place, reason)
        table = results.table() if per == "run" else results.rounds()
        if table.empty:
            raise UserError(f"folder: {folder} has no finished records")
        return table


def plot(
    results: Results | pd.DataFrame, x: str = "round", y: str = "objective", by: str = "algo", ax: Axes | None = None
) -> Axes:
    """Draw a line for every value of `by`: the median of `y` over the runs that differ in their seed only, in a band of
    their range. Of Results each algorithm has its chosen learning rates and options, as in a report, unless `x` or
    `by` is one of these; other settings that differ make lines of their own. Any number of a table may be `x` or `y`;
    of Results it is the table of rounds where `x` is measured by round.
    """
    from matplotlib import pyplot

    from fco_cli.reporting.lines import check_columns, compares_rates, draw_lines
    from fco_cli.reporting.select import chosen_runs
    from fco_cli.reporting.studies import Results

    if isinstance(results, Results):
        by_round = any(x in run.curves for study in results.every_study for run in study.runs)
        results = results if compares_rates(x, by) else chosen_runs(results)
        results = results.rounds() if by_round else results.table()
    with as_python_errors():
        check_columns(results, x, y, by)
    axis = pyplot.subplots()[1] if ax is None else ax
    draw_lines(axis, results, x, y, by)
    return axis


@contextmanager
def _called() -> Iterator[None]:
    """What every call does first and last."""
    from fco_cli import theory

    theory.register()
    try:
        with as_python_errors():
            yield
    finally:
        if settings := sys.modules.get("fco_cli.federation.settings"):
            settings.hang_up()  # a connection to sites has threads, which would keep the program alive


def _checked(words: tuple[str, ...]) -> list[str]:
    from fco_cli.config.words import check_words, quoted

    for word in words:
        require(isinstance(word, str), "words", word, "text, such as 'task=lasso'")
    made = [quoted(word) for word in words]
    check_words(made)
    return made


def _refuse_several(config: DictConfig) -> None:
    """What is a sweep, said as the command does."""
    if config.experiment is not None or config.path is not None or config.theory is not None:
        name = "path" if config.path is not None else "theory" if config.theory is not None else config.experiment.name
        raise UserError(f'experiment: {name} is a sweep: sweep("experiment={name}")')
    if config.seeds is not None:
        raise UserError(f"seeds: got {config.seeds}, which is several runs: sweep(...), or seed=... for one")
    _refuse_dry_run(config)


def _refuse_dry_run(config: DictConfig) -> None:
    require(not config.dry_run, "dry_run", True, "false in Python; fco-run -m says how much work a sweep is")


def _swept(
    jobs: list[JobConfig], overrides: list[list[str]], folders: list[Path], **options: Any
) -> list[float | Exception]:
    """Run all jobs; `folders` become those of their records."""
    from rich.console import Console

    from fco_cli.config import Run
    from fco_cli.path.record import recorded_selection
    from fco_cli.simulation.stop import Stop
    from fco_cli.sweeps.run import Sweep
    from fco_cli.sweeps.screen import SweepProgress

    configs = list({id(job.shared): job.shared for job in jobs}.values())  # jobs differ from these in numbers only
    for config in configs:
        _refuse_dry_run(config)
        require(config.theory is None, "experiment", "theory", "another one: the command fco-theory runs it")
    if any(config.path is not None for config in configs):
        values = []
        for one in (Run.of(job.config()) for job in jobs):
            with Stop() as stop:
                values.append(recorded_selection(one, stop)["chosen"]["min"]["cv_loss"])
            folders.append(one.folder)
        return values
    all_runs = Sweep(jobs, overrides, **options)
    all_runs.run(SweepProgress(Console(stderr=True)))
    folders += all_runs.finished_folders
    return all_runs.values()
