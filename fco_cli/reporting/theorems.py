"""What `experiment=theory` left: how often each statement's bound was violated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fco_cli.reporting.gate import LOADER, BadRecord, read_json
from fco_cli.reporting.text import printable


@dataclass(frozen=True)
class Theorems:
    """The table of the theory experiment."""

    folder: Path
    grid: dict[str, Any]  # on which they were checked
    statements: dict[str, tuple[int, int, str]]  # name -> cells, violated, smallest slack

    @classmethod
    def read(cls, folder: Path) -> Theorems:
        result = read_json(folder / "result.json")
        try:
            _, *rows = result["table"]
            statements = {printable(row[0]): (int(row[1]), int(row[2]), printable(row[3])) for row in rows}
            return cls(folder, yaml.load(result["config"], Loader=LOADER), statements)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, yaml.YAMLError) as problem:
            raise BadRecord(f"result.json: not the table of the theory experiment: {problem!r}") from problem
