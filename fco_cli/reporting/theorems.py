"""Reader of the records of `experiment=theory`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fco_cli.reporting.text import printable
from fco_cli.reporting.validation import parse_yaml
from fco_cli.results import TheoryResult, read_result
from fco_cli.typed_files import MEBIBYTE, read_bounded


@dataclass(frozen=True)
class Theorems:
    """Results of the theory experiment: violations of the bound of each statement."""

    folder: Path
    grid: dict[str, Any]  # configuration of the experiment
    statements: dict[str, tuple[int, int, str]]  # name -> cells, violated, smallest slack
    table: list[list[str]]  # printed table, header first

    @classmethod
    def read(cls, folder: Path) -> Theorems:
        """Read a record; raise BadRecord if it is invalid."""
        result = read_result(folder, TheoryResult)
        table = [[printable(cell) for cell in row] for row in result["table"]]
        statements = {row[0]: (int(row[1]), int(row[2]), row[3]) for row in table[1:]}
        grid = parse_yaml("result.json: config", result["config"])
        return cls(folder, grid, statements, table)

    def figure(self) -> bytes:
        """Return the recorded figure as PNG."""
        return read_bounded(self.folder / "theory.png", 8 * MEBIBYTE)
