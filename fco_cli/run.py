"""fco-run: a configuration becomes a problem, the problem a simulation, the simulation a record."""

from __future__ import annotations

import logging
import os
import sys

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fco_cli.config import Run, register
from fco_cli.errors import Interrupted, UserError, one_line

log = logging.getLogger("fco")


def run(config: DictConfig) -> None:
    """The story of one run."""
    from rich.console import Console

    from fco_cli.execute import Stop, execute, why_diverged
    from fco_cli.terminal import RunProgress, final_table

    one = Run.of(config)
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


def main() -> None:
    """Compose the configuration with Hydra and run it; every way to fail has its exit code."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and we say it in one line
    register()
    try:
        hydra.main(version_base="1.3", config_path="pkg://fco_cli.conf", config_name="config")(_job)()
    except (HydraException, OmegaConfBaseException) as problem:
        sys.exit(_report(problem))
    except KeyboardInterrupt:  # before there was anything to save, or a second one
        print("fco-run: stopped at once", file=sys.stderr)
        sys.exit(130)


def _job(config: DictConfig) -> None:
    """What Hydra calls; it must not see our exceptions, for it would print their traces."""
    try:
        run(config)
    except (UserError, OmegaConfBaseException, Interrupted) as problem:
        sys.exit(_report(problem))
    except MemoryError as problem:
        sys.exit(_report(UserError(f"task: not enough memory: {problem}")))


def _report(problem: Exception) -> int:
    if isinstance(problem, Interrupted):
        print("fco-run: stopped; the checkpoint is saved, the same command continues", file=sys.stderr)
        return problem.exit_code
    print(f"fco-run: {one_line(problem)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
