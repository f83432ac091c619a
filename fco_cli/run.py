"""fco-run: a configuration becomes a problem, the problem a simulation, the simulation a record."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import cast

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fco_cli.config import Run, register
from fco_cli.errors import Interrupted, UserError, one_line

log = logging.getLogger("fco")


def run(config: DictConfig) -> None:
    """The story of one run."""
    from rich.console import Console

    from fco_cli.execute import Stop, execute, why_diverged
    from fco_cli.terminal import RunProgress, final_table

    if config.theory is not None:
        return check_theory(config)
    one = Run.of(config)
    if config.advise:
        return advise(one)
    log.info(one.describe())
    console = Console(stderr=True)
    with Stop() as stop, RunProgress(console) as progress:
        (outcome,) = execute([one], progress, stop)
    if outcome.was_done:
        log.info("already done (force=true runs it again)")
    if outcome.result["status"] == "diverged":
        log.warning(why_diverged(one, outcome.result))
    output = Console()
    output.print(final_table(outcome.result))
    output.print(f"record: {one.folder}", soft_wrap=True, highlight=False)


def advise(one: Run) -> None:
    """advise=true: the step sizes that the theorems recommend, from the task's data; nothing is run or recorded."""
    from rich.console import Console

    from fco_cli.advice import estimate_constants, paper_grid
    from fco_cli.execute import build_problem
    from fco_cli.terminal import advice_tables

    log.info(one.describe())
    constants = estimate_constants(one, build_problem(one))
    output = Console()
    for table in advice_tables(constants, paper_grid(), one.hparams.client_lr):
        output.print(table, "")


def check_theory(config: DictConfig) -> None:
    """experiment=theory: not one run but many small ones, and the paper's bounds beside them."""
    from rich.console import Console

    from fco_cli.terminal import theory_table
    from fco_cli.theory.run import check_theorems
    from fco_cli.theory.statements import Grid

    folder, grid = Path(config.output_dir), cast(Grid, OmegaConf.to_object(config.theory))
    result = check_theorems(grid, OmegaConf.to_yaml(config.theory, resolve=True), folder, config.force)
    output = Console()
    output.print(theory_table(result))
    output.print(f"figure: {folder / 'theory.png'}", soft_wrap=True, highlight=False)


def main() -> None:
    """Compose the configuration with Hydra and run it; every way to fail has its exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and we say it in one line
    register()
    try:
        hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(_job)()
    except (HydraException, OmegaConfBaseException) as problem:
        sys.exit(_report(UserError(one_line(problem))))


def _job(config: DictConfig) -> None:
    """What Hydra calls; it must not see our exceptions, for it would print their traces."""
    try:
        run(config)
    except (UserError, OmegaConfBaseException, Interrupted) as problem:
        sys.exit(_report(problem))


def _report(problem: Exception) -> int:
    if isinstance(problem, Interrupted):
        print("fco-run: stopped; the checkpoint is saved, the same command continues", file=sys.stderr)
        return problem.exit_code
    print(f"fco-run: {one_line(problem)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
