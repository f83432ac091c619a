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

from fco_cli.data.format import name_array, shown
from fco_cli.data.readers.cells import CellParser, Renaming, parse_number
from fco_cli.data.readers.raw_table import RawTable, label_column
from fco_cli.data.readers.source import ReadOptions
from fco_cli.data.readers.tables import ColumnIndex, Table, index_columns, row_clients
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

if TYPE_CHECKING:
    import pandas as pd

MAX_LINE = 1 << 26  # characters; a file of NUL bytes is a single line
CHUNK = 1 << 24  # bytes
CHUNK_CELLS = 1 << 18
WIDE = 2000  # columns; pandas has an overhead per column
SPECIAL_CHARACTERS = ('"', "\0")
DELIMITERS = (",", ";", "\t")
QUOTED = re.compile(r'"[^"]*"')
SEPARATOR_LINE = re.compile(r'"?sep=([,;\t])"?\s*')  # the first line of some files for Excel

Row = tuple[int, list[str]]  # number (from 1) of its last line, and its cells


class Csv(Table):
    name, suffix = "a CSV file", ".csv"
    parser_errors = (csv.Error,)

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with _open_table(path, options):  # check the header
            cells = 1
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                cells += sum(chunk.count(end) for end in (b",", b";", b"\t", b"\n", b"\r"))
        return 8 * cells

    def raw(self, path: Path, options: ReadOptions) -> RawTable:
        with _open_table(path, options) as (header, content):
            table = TableReader(path, header, options)
            while chunk := list(islice(content.lines, table.chunk_rows)):
                if len(header) > WIDE or any(mark in line for line in chunk for mark in SPECIAL_CHARACTERS):
                    content = content.put_back(chunk)
                    break
                table.add_lines(content.done, chunk, content.delimiter)
                content.done += len(chunk)
            rows = content.rows()
            while cells := [(content.done + rows.line_num, cells) for cells in islice(rows, table.chunk_rows)]:
                table.add([row for row in cells if row[1]])  # skip empty lines
        return table.finish()


class Tsv(Csv):
    name, suffix = "a TSV file", ".tsv"


class TableReader:
    """Incremental reader of one table."""

    def __init__(self, path: Path, header: list[str], options: ReadOptions, is_typed: bool = False) -> None:
        columns, self.width, self.is_typed = options.columns, len(header), is_typed
        while len(header) > 1 and not header[-1]:  # separators at the end of every line
            header = header[:-1]
        self.renaming = Renaming.of(path, columns.map, header, columns.fold_case, options.labeled)
        self.path, self.header, self.options = path, self.renaming.header(header), options
        self.index: ColumnIndex = index_columns(path, self.header, options)
        self.cells = CellParser.from_markers(columns.missing, self.header, columns.decimal)
        self.chunk_rows = max(1, CHUNK_CELLS // len(header))
        self.pandas_options = _pandas_options(self.index, self.width)
        self.numbers = array("d")  # [N, d], grows in place
        self.lines = array("q")
        self.texts: dict[int, list[tuple[int, str]]] = {}  # texts of the features that are not all numbers
        if columns.decimal is not None:  # 1.234 may be 1234: parse every cell
            self.texts = {k: [] for k in range(len(self.index.features))}
        self.others: dict[int, list[str]] = {column: [] for column in self.index.others}

    def add_lines(self, done: int, chunk: list[str], delimiter: str) -> None:
        """Parse lines without quotes with pandas; `done` lines precede them."""
        plain = [(done + i, line) for i, line in enumerate(chunk, 1) if line.strip("\r\n")]
        for number, line in plain:
            self._check_width(number, line.count(delimiter) + 1)
            if self.width > len(self.header):
                self._check_unnamed(number, line.split(delimiter))
        if not plain:
            return
        frame = self._frame("".join(line for _, line in plain), delimiter)
        block = np.empty((len(plain), len(self.index.features)))
        for k, column in enumerate(self.index.features):
            block[:, k] = self._column(k, frame[column])
        self.numbers.frombytes(block.tobytes())
        for column, texts in self.others.items():
            texts.extend(map(self.cells.intern, frame[column].tolist()))
        self.lines.extend(number for number, _ in plain)

    def _frame(self, text: str, delimiter: str) -> pd.DataFrame:
        """Parse lines with pandas; parse again, with text columns, if a column turns out not to be numeric."""
        import pandas as pd

        features = self.index.features
        while True:
            text_columns = [features[k] for k in self.texts]
            missing: Any = {column: list(self.cells.missing_texts) for column in set(features).difference(text_columns)}
            texts = dict.fromkeys([*self.index.others, *text_columns], "str")
            frame: Any = pd.read_csv(
                io.StringIO(text), sep=delimiter, dtype=texts, na_values=missing, **self.pandas_options
            )
            new = [
                k for k, column in enumerate(features) if k not in self.texts and frame[column].dtype.kind not in "biuf"
            ]
            if not new:
                return frame
            self.texts |= {k: [] for k in new}

    def _column(self, k: int, cells: pd.Series) -> Array:
        if k not in self.texts:
            return cells.to_numpy(dtype=float)
        codes, distinct = cells.factorize()
        meanings = [self.cells.parse(str(cell)) for cell in distinct.tolist()]
        numbers = np.array([np.nan if isinstance(meaning, str) else meaning for meaning in meanings])
        for row, code in enumerate(codes.tolist(), len(self.lines)):
            if isinstance(meaning := meanings[code], str):
                self.texts[k].append((row, meaning))
        return numbers[codes]

    def _check_width(self, line: int, cells: int) -> None:
        if cells != self.width:
            raise UserError(f"{self.path}: line {line} has {cells} cells, the header has {self.width}")

    def _check_unnamed(self, line: int, cells: list[str]) -> None:
        """Raise UserError if a column without a name, at the end of the table, is not empty."""
        for column, cell in enumerate(cells[len(self.header) :], len(self.header) + 1):
            if cell.strip():
                text = shown(cell.strip(), 40)
                raise UserError(f"{self.path}: line {line}: column {column} has no name, but holds {text!r}; name it")

    def add(self, rows: list[Row]) -> None:
        """Add rows that are already split into cells."""
        for line, cells in rows:
            self._check_width(line, len(cells))
            self._check_unnamed(line, cells)
        try:
            self._add_numbers(rows)
        except ValueError:  # a column is no longer all numbers
            for k, column in enumerate(self.index.features):
                if k not in self.texts and not self._all_numbers([cells[column] for _, cells in rows]):
                    self.texts[k] = []
            self._add_numbers(rows)
        for column, texts in self.others.items():
            texts.extend(self.cells.intern(cells[column]) for _, cells in rows)
        self.lines.extend(line for line, _ in rows)

    def _add_numbers(self, rows: list[Row]) -> None:
        features = self.index.features
        plain = [k for k in range(len(features)) if k not in self.texts] if self.texts else range(len(features))
        columns = [features[k] for k in plain]
        values = self.cells.parse_numbers([cells[column] for _, cells in rows for column in columns])
        if not self.texts:
            self.numbers.extend(values)
            return
        block = np.full((len(rows), len(features)), np.nan)
        block[:, plain] = np.reshape(values, (len(rows), len(columns)))
        for k, texts in self.texts.items():
            for i, (_, cells) in enumerate(rows):
                meaning = self.cells.parse(cells[features[k]])
                if isinstance(meaning, str):
                    texts.append((len(self.lines) + i, meaning))
                else:
                    block[i, k] = meaning
        self.numbers.frombytes(block.tobytes())

    def _all_numbers(self, cells: list[str]) -> bool:
        try:
            self.cells.parse_numbers(cells)
        except ValueError:
            return False
        return True

    def finish(self) -> RawTable:
        """Return the table."""
        path, index = self.path, self.index
        features = [self.header[column] for column in index.features]
        rows = len(self.lines)
        numbers = np.frombuffer(self.numbers).reshape(rows, len(features))
        texts = {
            k: (np.array([row for row, _ in entries]), name_array(path, "category", [text for _, text in entries]))
            for k, entries in self.texts.items()
            if entries
        }
        table = RawTable(
            path, self.options.columns, features, numbers, texts, np.frombuffer(self.lines, np.int64),
            row_clients(path, self._names_of(index.client), rows, self.options),
            index.meaning, None, self.renaming, is_typed=self.is_typed,
        )  # fmt: skip
        if index.label is not None:
            table.label = label_column(table, self.cells, self.others[index.label], index.meaning.column)
        if index.split is not None:
            table.split = name_array(path, "split", self._names_of(index.split) or [])
        if index.event is not None and index.event_meaning is not None:
            table.event_meaning = index.event_meaning
            table.event = label_column(table, self.cells, self.others[index.event], index.event_meaning.column)
        if index.weights is not None:
            table.weights = self._weights(table, self.others[index.weights])
        if index.patient is not None:
            table.patient = name_array(path, "patient", self._names_of(index.patient) or [])
        dates = {name: self.others[column] for name, column in index.dates.items()}
        return table.complete(self.cells, dates, index.derivations)

    def _names_of(self, column: int | None) -> list[str] | None:
        """Return a column of names; raise UserError if one is empty."""
        if column is None:
            return None
        for line, text in zip(self.lines, self.others[column], strict=True):
            if not text.strip():
                name = shown(self.header[column])
                raise UserError(f"{self.path}: line {line}: column {name!r} is empty; every row must have a value")
        return self.others[column]

    def _weights(self, table: RawTable, cells: list[str]) -> Array:
        values = [self.cells.parse(cell) for cell in cells]
        for row, value in enumerate(values):
            if isinstance(value, str):
                table.fail(row, self.options.columns.weights, value, "a weight must be a number >= 0")
        return np.array(values, dtype=float)


def _pandas_options(index: ColumnIndex, columns: int) -> dict[str, Any]:
    """Return the options of pandas.read_csv: exact numbers, no default missing values."""
    from pandas import __version__ as version

    options: dict[str, Any] = {
        "header": None, "names": range(columns), "usecols": [*index.others, *index.features], "index_col": False,
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

    def put_back(self, some: list[str]) -> _Content:
        """Return the content with `some` lines put back."""
        return _Content(chain(some, self.lines), self.delimiter, self.done)

    def rows(self) -> Any:
        return csv.reader(self.lines, delimiter=self.delimiter, strict=True)


@contextmanager
def _open_table(path: Path, options: ReadOptions) -> Iterator[tuple[list[str], _Content]]:
    """Open a file and return the column names and the lines after the header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _lines(path, file)
        first, done = next(lines, ""), 0
        stated = SEPARATOR_LINE.fullmatch(first)
        if stated is not None:
            first, done = next(lines, ""), 1
        content = _Content(chain([first], lines), _delimiter(first) if stated is None else stated[1], done)
        rows = content.rows()
        header: list[str] = next(rows, [])
        if not header:
            raise UserError(f"{path}: its first line is empty; it must hold the column names")
        names, given = [name.strip() for name in header], list(options.columns.names)
        if given and not set(names) <= set(given):  # the first line is data, not a header
            if len(names) != len(given):
                raise UserError(
                    f"{path}: line 1 has {len(names)} cells, but {len(given)} column names are given (names)"
                )
            yield given, content.put_back([first])
            return
        if all(parse_number(name) is not None for name in names):
            raise UserError(
                f"{path}: its first line holds numbers: give the column names of a table without header (names)"
            )
        content.done += rows.line_num
        yield names, content


def _delimiter(line: str) -> str:
    """Return the most frequent delimiter in the first line, outside of quotes."""
    return max(DELIMITERS, key=QUOTED.sub("", line).count)


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE:
            raise UserError(f"{path}: has a line of more than {MAX_LINE} characters")
        yield line
