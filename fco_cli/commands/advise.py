"""fco-advise: print the client_lr that the theorems recommend for a task's data, without running anything."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fco_cli.commands.shell import handle_version_and_help, one_line_errors, run_hydra, table_console

if TYPE_CHECKING:
    from omegaconf import DictConfig

log = logging.getLogger("fco")

HELP = f"""\
{__doc__}
  fco-advise task=lasso
  fco-advise task=custom task.path=clinics.csv task.loss=logistic hparams.rounds=200
      accepts the arguments of fco-run (fco-run --help)
"""


def main() -> None:
    """Run the command line."""
    with one_line_errors("fco-advise"):
        if not handle_version_and_help(lambda: HELP):
            run_hydra("fco-advise", advise)


def advise(config: DictConfig) -> None:
    """Estimate the constants of the problem and print the recommended learning rates."""
    from fco_cli.commands.tables import advice_tables
    from fco_cli.config import Run
    from fco_cli.errors import require
    from fco_cli.simulation.problems import checked_problem_of, client_lr_of
    from fco_cli.theory.advice import estimate_constants, paper_grid

    federation = config.federation.name
    require(federation == "none", "federation", federation, "none: fco-advise needs the clients' rows in this process")
    run = Run.of(config)
    log.info(run.describe())
    constants = estimate_constants(run, checked_problem_of(run))
    output = table_console()
    for table in advice_tables(constants, paper_grid(), client_lr_of(run)):
        output.print(table, "")


if __name__ == "__main__":
    main()
