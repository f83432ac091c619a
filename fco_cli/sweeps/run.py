"""A whole sweep: what is done already, the rest as stacks, and the best of all."""

from __future__ import annotations

import logging
import math
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from fco_cli.config import Run
from fco_cli.errors import SweepFailed, UserError
from fco_cli.execute import Stop
from fco_cli.files import as_yaml
from fco_cli.simulation.record import Record
from fco_cli.sweeps.backends import BACKENDS, Options
from fco_cli.sweeps.display import Display
from fco_cli.sweeps.plan import describe_plan
from fco_cli.sweeps.stacks import Ended, stacks_of

log = logging.getLogger(__name__)


def sweep(configs: list[DictConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
    """Run all jobs of a Hydra multirun: the final objective of each, in order, or what it failed with."""
    checked = Options(**options)
    runs = [Run.of(config) for config in configs]
    unique = {run.run_id: run for run in runs}
    display, ended = Display(Console(stderr=True)), Ended()
    for run_id, run in unique.items():
        if not run.force and (result := Record(run.folder).result()):
            ended.results[run_id] = result
            display.already(result["status"])
    missing = [run for run_id, run in unique.items() if run_id not in ended.results]
    if configs[0].dry_run:
        Console().print(describe_plan(missing, len(ended.results), checked), highlight=False)
        return [math.nan] * len(runs)
    with tempfile.TemporaryDirectory() as folder, Stop(Path(folder) / "stop") as stop:
        stacks = stacks_of(missing)
        with display.watching(stacks):
            for part in BACKENDS[checked.backend](stacks, checked, stop, display.post):
                ended.add(part)
        stop.check()
    if len(ended.refusals) == len(unique):
        raise UserError(next(iter(ended.refusals.values())))
    for run, config, chosen in zip(runs, configs, overrides, strict=True):
        _save_hydra_output(run, config, chosen)
    _print_best(list(unique.values()), ended)
    failure = _failure(unique, ended)
    return [_objective(ended.results[run.run_id]) if run.run_id in ended.results else failure for run in runs]


def _objective(result: dict[str, Any]) -> float:
    """What sweepers that optimise want to see; infinite for a run that diverged."""
    final = result["final"]["objective"]
    return math.inf if final is None or result["status"] == "diverged" else final


def _failure(unique: dict[str, Run], ended: Ended) -> SweepFailed:
    reasons: dict[str, list[str]] = {}
    for run_id, reason in (ended.failures | ended.refusals).items():
        reasons.setdefault(reason, []).append(str(unique[run_id].folder))
    lines = [f"{sum(map(len, reasons.values()))} of {len(unique)} runs failed:"]
    for reason, folders in reasons.items():
        others = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        lines.append(f"  {folders[0]}{others}: {reason}")
    return SweepFailed("\n".join(lines))


def _save_hydra_output(run: Run, config: DictConfig, overrides: list[str]) -> None:
    """What Hydra would leave of a job, beside its record; a folder that has it is not touched again."""
    folder = run.folder / ".hydra"
    if run.folder.exists() and not folder.exists():
        folder.mkdir()
        (folder / "config.yaml").write_text(as_yaml(OmegaConf.to_container(config)))
        (folder / "overrides.yaml").write_text(as_yaml(overrides))


def _print_best(runs: list[Run], ended: Ended) -> None:
    """The best configuration of each algorithm, chosen as a report chooses."""
    from fco_cli.reporting.records import read_record
    from fco_cli.reporting.select import choose
    from fco_cli.reporting.studies import studies_of

    studies = studies_of([read_record(run.folder) for run in runs if run.run_id in ended.results])
    if not studies:
        return
    table = Table(title=f"best by {studies[0].rule}", title_justify="left", box=None, pad_edge=False)
    for heading in ("task", "algorithm", studies[0].rule.metric, "client lr", "server lr", "record"):
        right = heading not in ("task", "algorithm", "record")
        table.add_column(heading.replace("_", " "), justify="right" if right else "left", no_wrap=True)
    for study in studies:
        for choice in choose(study).values():
            if (best := choice.best) is not None:
                task = " ".join(filter(None, (best.runs[0].config["task"]["name"], study.variant)))
                rates = ["" if rate is None else f"{rate:g}" for rate in (best.client_lr, best.server_lr)]
                table.add_row(task, choice.algo, f"{best.score:.4g}", *rates, str(best.runs[0].folder))
    Console(width=160).print(table)
