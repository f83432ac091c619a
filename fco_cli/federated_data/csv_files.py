"""CSV, read some lines at a time: 10^6 columns are as good as 10^6 rows, and every cell is as it was written."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays, as_names, shown
from fco_cli.federated_data.source import Wanted
from fco_cli.federated_data.tables import NO_DATES, Places, Table, places
from fco_cli.problem.layout import Array

MAX_LINE = 1 << 26  # characters: a file of zeros is one line
CHUNK = 1 << 24  # bytes
CELLS_AT_ONCE = 1 << 16
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(\D|$)")
TRUTH = {"true": 1.0, "false": 0.0}

Row = tuple[int, list[str]]  # the line at which it ends, counted from 1, and its cells


class Csv(Table):
    name, ending = "a CSV file", ".csv"

    def needs(self, path: Path, wanted: Wanted) -> int:
        with _opened(path):  # it has a header
            cells = 1
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                cells += sum(chunk.count(end) for end in (b",", b"\n", b"\r"))
        return 8 * cells

    def read(self, path: Path, wanted: Wanted) -> Arrays:
        with _opened(path) as (header, rows):
            table = _Cells(path, header, places(path, header, wanted))
            while chunk := [(rows.line_num, cells) for cells in islice(rows, table.rows_at_once)]:
                table.add([row for row in chunk if row[1]])  # empty lines are left out
        return table.arrays()


class _Cells:
    """What has been read of a table."""

    def __init__(self, path: Path, header: list[str], found: Places) -> None:
        self.path, self.header, self.found = path, header, found
        self.rows_at_once = max(1, CELLS_AT_ONCE // len(header))
        self.numbers = array("d")  # grows in place
        self.texts: dict[int, list[str]] = {
            place: [] for place in (found.label, found.client, found.split) if place is not None
        }
        self.known: dict[str, str] = {}  # one object for all cells of the same text

    def add(self, rows: list[Row]) -> None:
        """Quickly; where something is odd, cell by cell."""
        features = self.found.features
        for line, cells in rows:
            if len(cells) != len(self.header):
                raise UserError(f"{self.path}: line {line} has {len(cells)} cells, the header has {len(self.header)}")
        try:
            values = [float(cells[place]) for _, cells in rows for place in features]
            for _, cells in rows:
                if "_" in "".join(cells) and any("_" in cells[place] for place in features):
                    raise ValueError  # Python takes 1_000 for a number
        except ValueError:
            values = [self._number(row, place) for row in rows for place in features]
        self.numbers.extend(values)
        for place, texts in self.texts.items():
            for row in rows:
                if not row[1][place].strip():
                    raise self._wrong(row, place, "it must be given in every row")
                texts.append(self.known.setdefault(row[1][place], row[1][place]))

    def _number(self, row: Row, place: int) -> float:
        cell = row[1][place].strip()
        try:
            return float(cell if "_" not in cell else "")
        except ValueError:
            if cell.lower() in TRUTH:
                return TRUTH[cell.lower()]
            raise self._wrong(row, place, NO_DATES if DATE.match(cell) else "every feature must be a number") from None

    def _wrong(self, row: Row, place: int, wanted: str) -> UserError:
        line, cells = row
        cell = shown(cells[place], 40)
        client = "" if self.found.client is None else f"client {shown(cells[self.found.client])!r}, "
        is_what = f"column {shown(self.header[place])!r} is {repr(cell) if cell else 'empty'}"
        return UserError(f"{self.path}: {client}line {line}: {is_what}; {wanted}")

    def arrays(self) -> Arrays:
        path, found, texts = self.path, self.found, self.texts
        features = as_names(path, "feature", [self.header[place] for place in found.features])
        labels = texts[found.label]
        clients = [path.stem] * len(labels) if found.client is None else texts[found.client]
        arrays = {
            "x": np.frombuffer(self.numbers).reshape(len(labels), len(features)),
            "y": _labels(path, labels),
            "client": as_names(path, "client", clients),
            "features": features,
        }
        return arrays | ({} if found.split is None else {"split": as_names(path, "split", texts[found.split])})


def _labels(path: Path, labels: list[str]) -> Array:
    """Numbers if all of them are, else words."""
    try:
        if not any("_" in label for label in set(labels)):
            return np.array([float(label) for label in labels])
    except ValueError:
        pass
    return as_names(path, "label", labels)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Any]]:
    """The header, and a reader of what follows it."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(_lines(path, file), strict=True)
        header = next(rows, [])
        if not header:
            raise UserError(f"{path}: its first line is empty; it must name the columns")
        yield header, rows


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
        yield line
