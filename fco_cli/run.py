"""fco-run: a configuration becomes a problem, the problem a simulation, the simulation a record."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fco_cli import VERSION
from fco_cli.errors import Interrupted, SweepFailed, UserError, one_line
from fco_cli.help import help_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fco_cli.config import Run

log = logging.getLogger("fco")


def run(config: DictConfig) -> float:
    """The story of one run."""
    from rich.console import Console

    from fco_cli.config import Run
    from fco_cli.execute import Stop, execute, why_diverged
    from fco_cli.terminal import RunProgress, final_table

    if config.theory is not None:
        check_theory(config)
        return math.nan
    one = Run.of(config)
    if config.advise:
        advise(one)
        return math.nan
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
    return outcome.result["final"]["objective"]


def advise(one: Run) -> None:
    """advise=true: the step sizes that the theorems recommend, from the task's data; nothing is run or recorded."""
    from rich.console import Console

    from fco_cli.advice import estimate_constants, paper_grid
    from fco_cli.execute import problem_of
    from fco_cli.terminal import advice_tables

    log.info(one.describe())
    constants = estimate_constants(one, problem_of(one))
    output = Console()
    for table in advice_tables(constants, paper_grid(), one.hparams.client_lr):
        output.print(table, "")


def check_theory(config: DictConfig) -> None:
    """experiment=theory: not one run but many small ones, and the paper's bounds beside them."""
    from omegaconf import OmegaConf
    from rich.console import Console

    from fco_cli.terminal import theory_table
    from fco_cli.theory.run import check_theorems
    from fco_cli.theory.statements import Grid

    folder, grid = Path(config.output_dir), cast(Grid, OmegaConf.to_object(config.theory))
    result = check_theorems(grid, OmegaConf.to_yaml(config.theory, resolve=True), folder, config.force)
    output = Console(width=160)
    output.print(theory_table(result))
    output.print(f"figure: {folder / 'theory.png'}", soft_wrap=True, highlight=False)


def main() -> None:
    """Compose the configuration with Hydra and run it."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text(), end="")
        return
    if "--version" in sys.argv[1:]:
        print(VERSION)
        return
    gc.set_threshold(100_000)  # start-up makes a great many objects and no garbage
    import hydra

    from fco_cli import hydra_on_314
    from fco_cli.config import register

    hydra_on_314.mend()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and we say it in one line
    register()
    _compose_once()
    with one_line_endings():
        hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(_job)()


def _compose_once() -> None:
    """Spare Hydra the composition from which it reads nothing but hydra.mode, where only -m could have set that."""
    from hydra._internal.hydra import Hydra

    options = ("-cd", "--config-dir", "-cn", "--config-name", "-cp", "--config-path")  # of a user's own files
    if not any("hydra.mode" in argument or argument.startswith(options) for argument in sys.argv[1:]):
        Hydra.get_mode = lambda self, config_name, overrides: None  # type: ignore[method-assign]


def _job(config: DictConfig) -> float:
    """What Hydra calls for a job; it must not see our exceptions, for it would add lines of its own."""
    with one_line_endings():
        return run(config)


def _sweep(configs: list[DictConfig], overrides: list[list[str]], **options: Any) -> list[float | Exception]:
    """What the fused launcher calls for all jobs at once."""
    if any(config.theory is not None or config.advise for config in configs):
        return [run(config) for config in configs]  # nothing that could be stacked
    from fco_cli.sweeps.run import sweep

    return sweep(configs, overrides, **options)


_job.sweep = _sweep  # type: ignore[attr-defined]


@contextmanager
def one_line_endings() -> Iterator[None]:
    """Every foreseen way to fail has its exit code and says itself in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except Interrupted as problem:
        sys.exit(_end(problem.exit_code, "stopped; checkpoints are saved, the same command continues"))
    except KeyboardInterrupt:  # before there was anything to save, or a second one
        sys.exit(_end(130, "stopped at once"))
    except SweepFailed as problem:
        sys.exit(_end(1, str(problem)))
    except MemoryError as problem:
        sys.exit(_end(2, f"task: not enough memory: {one_line(problem)}"))
    except (UserError, HydraException, OmegaConfBaseException) as problem:
        sys.exit(_end(2, one_line(problem)))


def _end(exit_code: int, message: str) -> int:
    print(f"fco-run: {message}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    main()
