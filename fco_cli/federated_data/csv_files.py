"""CSV, read some lines at a time: 10^6 columns are as good as 10^6 rows, and every cell is as it was written."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.cells import Cells, as_number
from fco_cli.federated_data.format import as_names, shown
from fco_cli.federated_data.source import Wanted
from fco_cli.federated_data.tables import Places, RawTable, Table, label_column, owners, places
from fco_cli.problem.layout import Array

MAX_LINE = 1 << 26  # characters: a file of zeros is one line
CHUNK = 1 << 24  # bytes
CELLS_AT_ONCE = 1 << 16
DELIMITERS = (",", ";", "\t")
QUOTED = re.compile(r'"[^"]*"')

Row = tuple[int, list[str]]  # the line at which it ends, counted from 1, and its cells


class Csv(Table):
    name, ending = "a CSV file", ".csv"

    def needs(self, path: Path, wanted: Wanted) -> int:
        with _opened(path, wanted):  # it has a header
            cells = 1
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                cells += sum(chunk.count(end) for end in (b",", b";", b"\t", b"\n", b"\r"))
        return 8 * cells

    def raw(self, path: Path, wanted: Wanted) -> RawTable:
        with _opened(path, wanted) as (header, rows):
            table = _Reader(path, header, wanted)
            while chunk := [(rows.line_num, cells) for cells in islice(rows, table.rows_at_once)]:
                table.add([row for row in chunk if row[1]])  # empty lines are left out
        return table.finished()


class Tsv(Csv):
    name, ending = "a TSV file", ".tsv"


class _Reader:
    """What has been read of a table."""

    def __init__(self, path: Path, header: list[str], wanted: Wanted) -> None:
        self.path, self.header, self.wanted = path, header, wanted
        self.found: Places = places(path, header, wanted)
        self.cells = Cells.where(wanted.columns.missing, header)
        self.rows_at_once = max(1, CELLS_AT_ONCE // len(header))
        self.numbers = array("d")  # [N, d], grows in place
        self.lines = array("q")
        self.odd: dict[int, list[tuple[int, str]]] = {}  # features whose cells are read one by one: their texts
        self.others: dict[int, list[str]] = {place: [] for place in self.found.others}

    def add(self, rows: list[Row]) -> None:
        for line, cells in rows:
            if len(cells) != len(self.header):
                raise UserError(f"{self.path}: line {line} has {len(cells)} cells, the header has {len(self.header)}")
        try:
            self._add_numbers(rows)
        except ValueError:  # a column is not all numbers, as it was so far
            for k, place in enumerate(self.found.features):
                if k not in self.odd and not self._all_numbers([cells[place] for _, cells in rows]):
                    self.odd[k] = []
            self._add_numbers(rows)
        for place, texts in self.others.items():
            texts.extend(self.cells.one_object(cells[place]) for _, cells in rows)
        self.lines.extend(line for line, _ in rows)

    def _add_numbers(self, rows: list[Row]) -> None:
        features = self.found.features
        plain = [k for k in range(len(features)) if k not in self.odd] if self.odd else range(len(features))
        places = [features[k] for k in plain]
        values = self.cells.numbers_of([cells[place] for _, cells in rows for place in places])
        if not self.odd:
            self.numbers.extend(values)
            return
        block = np.full((len(rows), len(features)), np.nan)
        block[:, plain] = np.reshape(values, (len(rows), len(places)))
        for k, texts in self.odd.items():
            for i, (_, cells) in enumerate(rows):
                meaning = self.cells.meaning(cells[features[k]])
                if isinstance(meaning, str):
                    texts.append((len(self.lines) + i, meaning))
                else:
                    block[i, k] = meaning
        self.numbers.frombytes(block.tobytes())

    def _all_numbers(self, cells: list[str]) -> bool:
        try:
            self.cells.numbers_of(cells)
        except ValueError:
            return False
        return True

    def finished(self) -> RawTable:
        path, found = self.path, self.found
        features = [self.header[place] for place in found.features]
        rows = len(self.lines)
        numbers = np.frombuffer(self.numbers).reshape(rows, len(features))
        self.cells.forget(numbers, features)
        texts = {
            k: (np.array([row for row, _ in own]), as_names(path, "category", [text for _, text in own]))
            for k, own in self.odd.items()
            if own
        }
        table = RawTable(
            path, self.wanted.columns, features, numbers, texts, np.frombuffer(self.lines, np.int64),
            owners(path, self._given(found.client), rows, self.wanted),
            found.meaning,
            None if found.label is None else label_column(path, self.cells, self.others[found.label]),
        )  # fmt: skip
        if found.split is not None:
            table.split = as_names(path, "split", self._given(found.split) or [])
        if found.weights is not None:
            table.weights = self._weights(table, self.others[found.weights])
        return table

    def _given(self, place: int | None) -> list[str] | None:
        """A column of names, none of them empty."""
        if place is None:
            return None
        for line, text in zip(self.lines, self.others[place], strict=True):
            if not text.strip():
                column = shown(self.header[place])
                raise UserError(f"{self.path}: line {line}: column {column!r} is empty; it must be given in every row")
        return self.others[place]

    def _weights(self, table: RawTable, cells: list[str]) -> Array:
        values = [self.cells.meaning(cell) for cell in cells]
        for row, value in enumerate(values):
            if isinstance(value, str):
                table.fail(row, self.wanted.columns.weights, value, "a row's weight is a number >= 0")
        return np.array(values, dtype=float)


@contextmanager
def _opened(path: Path, wanted: Wanted) -> Iterator[tuple[list[str], Any]]:
    """The names of the columns, and a reader of the rows."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _lines(path, file)
        first = next(lines, "")
        rows = csv.reader(chain([first], lines), delimiter=_delimiter(first), strict=True)
        header = next(rows, [])
        if not header:
            raise UserError(f"{path}: its first line is empty; it must name the columns")
        if not (names := list(wanted.columns.names)):
            names = [name.strip() for name in header]
            if all(as_number(name) is not None for name in names):
                raise UserError(
                    f"{path}: its first line holds numbers: name the columns of a table without header (names)"
                )
            yield names, rows
            return
        if len(header) != len(names):
            raise UserError(f"{path}: line 1 has {len(header)} cells, but {len(names)} names are given (names)")
        yield names, _Again(header, rows)


class _Again:
    """The rows, with the first one once more."""

    def __init__(self, first: list[str], rows: Any) -> None:
        self._rows, self._all = rows, chain([first], rows)

    @property
    def line_num(self) -> int:
        return self._rows.line_num

    def __iter__(self) -> Iterator[list[str]]:
        return self._all


def _delimiter(line: str) -> str:
    """The one that makes the most of the first line."""
    return max(DELIMITERS, key=QUOTED.sub("", line).count)


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
        yield line
