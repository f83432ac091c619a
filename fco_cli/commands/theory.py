"""fco-theory: check the paper's theorems by simulation, on quadratics whose constants are known exactly."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fco_cli.commands.shell import handle_version_and_help, one_line_errors, run_hydra
from fco_cli.commands.streams import print_line, table_console
from fco_cli.errors import require

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main() -> None:
    """Run the command line."""
    with one_line_errors("fco-theory"):
        if not handle_version_and_help(_help):
            sys.argv.insert(1, "experiment=theory")
            run_hydra("fco-theory", check)


def check(config: DictConfig) -> None:
    """Run the grid of small problems and print the results with the paper's bounds."""
    from omegaconf import OmegaConf

    from fco_cli.commands.tables import theory_table
    from fco_cli.config.run import check_profile
    from fco_cli.theory.run import check_theorems
    from fco_cli.theory.statements import Grid

    check_profile(config)
    require(OmegaConf.get_type(config, "theory") is Grid, "theory", config.theory, "null; experiment=theory sets it")
    folder, grid = Path(config.output_dir), cast(Grid, OmegaConf.to_object(config.theory))
    result = check_theorems(grid, OmegaConf.to_yaml(config.theory, resolve=True), folder, config.force)
    table_console(160).print(theory_table(result))
    print_line(f"figure: {folder / 'theory.png'}")


HELP = """\
{about}
  fco-theory
      writes the figure, a table and every cell to outputs/theory
  fco-theory profile=quick theory.seeds=4 output_dir=elsewhere

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
