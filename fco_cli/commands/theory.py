"""fco-theory: check the paper's theorems by simulation, on quadratics whose constants are known exactly."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from fco_cli.commands.shell import handle_version_and_help, one_line_errors, print_line, run_hydra, table_console

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fco_cli.experiments import Finished


def main() -> None:
    """Run the command line."""
    with one_line_errors("fco-theory"):
        if not handle_version_and_help(_help):
            sys.argv.insert(1, "experiment=theory")
            run_hydra("fco-theory", check)


def check(config: DictConfig) -> None:
    """Run the grid of small problems and print the results with the paper's bounds."""
    from fco_cli.experiments import THEORY

    print_theory(THEORY.execute(config))


def print_theory(finished: Finished) -> None:
    """Print the table of a check and the path of its figure."""
    from fco_cli.commands.tables import theory_table

    table_console(160).print(theory_table(finished.result))
    print_line(f"figure: {finished.folder / 'theory.png'}")


HELP = """\
{about}
  fco-theory
      writes the figure, a table and every cell to outputs/theory
  fco-theory profile=quick theory.seeds=4 output_dir=FOLDER

Keys:
{keys}
  output_dir, force (repeat finished checks), profile (paper, laptop, quick, smoke)
"""


def _help() -> str:
    """Return the help text, with the keys and comments of experiment/theory.yaml."""
    text = files("fco_cli.conf").joinpath("experiment/theory.yaml").read_text(encoding="utf-8")
    _, own = text.rstrip().split("\ntheory:\n")
    return HELP.format(about=__doc__, keys=re.sub("^  ", "  theory.", own, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
