"""Reader of CSV files, some lines at a time, for tables with up to 10^6 columns or more than 10^6 rows.

Lines without quotes are parsed by pandas, which is ten times as fast. Lines with quotes and tables with more than
WIDE columns are parsed cell by cell. Both give the same table.
"""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fco_cli.data.cells import Cells, as_number
from fco_cli.data.format import as_names, shown
from fco_cli.data.places import Places, places
from fco_cli.data.source import Wanted
from fco_cli.data.tables import RawTable, Table, label_column, owners
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    import pandas as pd

MAX_LINE = 1 << 26  # characters; a file of NUL bytes is a single line
CHUNK = 1 << 24  # bytes
CELLS_AT_ONCE = 1 << 18
WIDE = 2000  # columns; pandas has an overhead per column
ODD_MARKS = ('"', "\0")
DELIMITERS = (",", ";", "\t")
QUOTED = re.compile(r'"[^"]*"')

Row = tuple[int, list[str]]  # number (from 1) of its last line, and its cells


class Csv(Table):
    name, ending = "a CSV file", ".csv"
    parser_errors = (csv.Error,)

    def needs(self, path: Path, wanted: Wanted) -> int:
        with _opened(path, wanted):  # check the header
            cells = 1
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                cells += sum(chunk.count(end) for end in (b",", b";", b"\t", b"\n", b"\r"))
        return 8 * cells

    def raw(self, path: Path, wanted: Wanted) -> RawTable:
        with _opened(path, wanted) as (header, content):
            table = _Reader(path, header, wanted)
            while chunk := list(islice(content.lines, table.rows_at_once)):
                if len(header) > WIDE or any(mark in line for line in chunk for mark in ODD_MARKS):
                    content = content.again(chunk)
                    break
                table.add_lines(content.done, chunk, content.delimiter)
                content.done += len(chunk)
            rows = content.rows()
            while cells := [(content.done + rows.line_num, cells) for cells in islice(rows, table.rows_at_once)]:
                table.add([row for row in cells if row[1]])  # skip empty lines
        return table.finished()


class Tsv(Csv):
    name, ending = "a TSV file", ".tsv"


class _Reader:
    """Incremental reader of one table."""

    def __init__(self, path: Path, header: list[str], wanted: Wanted) -> None:
        self.path, self.header, self.wanted = path, header, wanted
        self.found: Places = places(path, header, wanted)
        self.cells = Cells.where(wanted.columns.missing, header)
        self.rows_at_once = max(1, CELLS_AT_ONCE // len(header))
        self.options = _options(self.found, len(header))
        self.numbers = array("d")  # [N, d], grows in place
        self.lines = array("q")
        self.odd: dict[int, list[tuple[int, str]]] = {}  # texts of the features that are not all numbers
        self.others: dict[int, list[str]] = {place: [] for place in self.found.others}

    def add_lines(self, done: int, chunk: list[str], delimiter: str) -> None:
        """Parse lines without quotes with pandas; `done` lines precede them."""
        plain = [(done + i, line) for i, line in enumerate(chunk, 1) if line.strip("\r\n")]
        for number, line in plain:
            self._check_width(number, line.count(delimiter) + 1)
        if not plain:
            return
        frame = self._frame("".join(line for _, line in plain), delimiter)
        block = np.empty((len(plain), len(self.found.features)))
        for k, place in enumerate(self.found.features):
            block[:, k] = self._column(k, frame[place])
        self.numbers.frombytes(block.tobytes())
        for place, texts in self.others.items():
            texts.extend(map(self.cells.one_object, frame[place].tolist()))
        self.lines.extend(number for number, _ in plain)

    def _frame(self, text: str, delimiter: str) -> pd.DataFrame:
        """Parse lines with pandas; parse again, with text columns, if a column turns out not to be numeric."""
        import pandas as pd

        features = self.found.features
        while True:
            odd = [features[k] for k in self.odd]
            missing: Any = {place: list(self.cells.words) for place in set(features).difference(odd)}
            texts = dict.fromkeys([*self.found.others, *odd], "str")
            frame: Any = pd.read_csv(io.StringIO(text), sep=delimiter, dtype=texts, na_values=missing, **self.options)
            new = [k for k, place in enumerate(features) if k not in self.odd and frame[place].dtype.kind not in "biuf"]
            if not new:
                return frame
            self.odd |= {k: [] for k in new}

    def _column(self, k: int, cells: pd.Series) -> Array:
        if k not in self.odd:
            return cells.to_numpy(dtype=float)
        codes, distinct = cells.factorize()
        meanings = [self.cells.meaning(str(cell)) for cell in distinct.tolist()]
        numbers = np.array([np.nan if isinstance(meaning, str) else meaning for meaning in meanings])
        for row, code in enumerate(codes.tolist(), len(self.lines)):
            if isinstance(meaning := meanings[code], str):
                self.odd[k].append((row, meaning))
        return numbers[codes]

    def _check_width(self, line: int, cells: int) -> None:
        if cells != len(self.header):
            raise UserError(f"{self.path}: line {line} has {cells} cells, the header has {len(self.header)}")

    def add(self, rows: list[Row]) -> None:
        """Add rows that are already split into cells."""
        for line, cells in rows:
            self._check_width(line, len(cells))
        try:
            self._add_numbers(rows)
        except ValueError:  # a column is no longer all numbers
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
        """Return the table."""
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
        if found.event is not None:
            table.event_meaning = found.event_meaning
            table.event = label_column(path, self.cells, self.others[found.event])
        if found.weights is not None:
            table.weights = self._weights(table, self.others[found.weights])
        return table

    def _given(self, place: int | None) -> list[str] | None:
        """Return a column of names; raise UserError if one is empty."""
        if place is None:
            return None
        for line, text in zip(self.lines, self.others[place], strict=True):
            if not text.strip():
                column = shown(self.header[place])
                raise UserError(f"{self.path}: line {line}: column {column!r} is empty; every row must have a value")
        return self.others[place]

    def _weights(self, table: RawTable, cells: list[str]) -> Array:
        values = [self.cells.meaning(cell) for cell in cells]
        for row, value in enumerate(values):
            if isinstance(value, str):
                table.fail(row, self.wanted.columns.weights, value, "a weight must be a number >= 0")
        return np.array(values, dtype=float)


def _options(found: Places, columns: int) -> dict[str, Any]:
    """Return the options of pandas.read_csv: exact numbers, no default missing values."""
    from pandas import __version__ as version

    options: dict[str, Any] = {
        "header": None, "names": range(columns), "usecols": [*found.others, *found.features], "index_col": False,
        "keep_default_na": False, "skip_blank_lines": False, "low_memory": False, "quoting": csv.QUOTE_NONE,
    }  # fmt: skip
    exact = tuple(int(part) for part in version.split(".")[:2]) >= (3, 1)  # by default
    return options if exact else options | {"float_precision": "round_trip"}


@dataclass
class _Content:
    """Unread lines of a file."""

    lines: Iterator[str]
    delimiter: str
    done: int = 0  # number of lines already read

    def again(self, some: list[str]) -> _Content:
        """Return the content with `some` lines put back."""
        return _Content(chain(some, self.lines), self.delimiter, self.done)

    def rows(self) -> Any:
        return csv.reader(self.lines, delimiter=self.delimiter, strict=True)


@contextmanager
def _opened(path: Path, wanted: Wanted) -> Iterator[tuple[list[str], _Content]]:
    """Open a file and return the column names and the lines after the header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _lines(path, file)
        first = next(lines, "")
        content = _Content(chain([first], lines), _delimiter(first))
        rows = content.rows()
        header: list[str] = next(rows, [])
        if not header:
            raise UserError(f"{path}: its first line is empty; it must hold the column names")
        found, given = [name.strip() for name in header], list(wanted.columns.names)
        if given and not set(found) <= set(given):  # the first line is data, not a header
            if len(found) != len(given):
                raise UserError(
                    f"{path}: line 1 has {len(found)} cells, but {len(given)} column names are given (names)"
                )
            yield given, content.again([first])
            return
        if all(as_number(name) is not None for name in found):
            raise UserError(
                f"{path}: its first line holds numbers: give the column names of a table without header (names)"
            )
        content.done = rows.line_num
        yield found, content


def _delimiter(line: str) -> str:
    """Return the most frequent delimiter in the first line, outside of quotes."""
    return max(DELIMITERS, key=QUOTED.sub("", line).count)


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
        yield line
