"""What `experiment=theory` left: how often each statement's bound was violated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fco_cli.reporting.gate import LOADER, MEBIBYTE, BadRecord, read_bounded, read_json
from fco_cli.reporting.text import printable


@dataclass(frozen=True)
class Theorems:
    """The table of the theory experiment."""

    folder: Path
    grid: dict[str, Any]  # on which they were checked
    statements: dict[str, tuple[int, int, str]]  # name -> cells, violated, smallest slack
    table: list[list[str]]  # as it is printed, the header first

    @classmethod
    def read(cls, folder: Path) -> Theorems:
        result = read_json(folder / "result.json")
        try:
            table = [[printable(cell) for cell in row] for row in result["table"]]
            _, *rows = table
            statements = {row[0]: (int(row[1]), int(row[2]), row[3]) for row in rows}
            return cls(folder, yaml.load(result["config"], Loader=LOADER), statements, table)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, yaml.YAMLError) as problem:
            raise BadRecord(f"result.json: not the table of the theory experiment: {problem!r}") from problem

    def figure(self) -> bytes:
        """The picture that was drawn of them, as PNG."""
        return read_bounded(self.folder / "theory.png", 8 * MEBIBYTE)
