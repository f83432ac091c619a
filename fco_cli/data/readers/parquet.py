"""Reader of Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import name_array, shown
from fco_cli.data.readers.cells import CellParser, Renaming
from fco_cli.data.readers.dates import date_advice
from fco_cli.data.readers.raw_table import RawTable, label_column
from fco_cli.data.readers.source import ReadOptions, as_user_error
from fco_cli.data.readers.tables import ColumnIndex, Table, index_columns, row_clients
from fco_cli.errors import UserError, install_extra
from fco_cli.problem.layout import Array

ROW_NUMBERS = re.compile(r"__index_level_\d+__")  # column of an unnamed pandas index


class Parquet(Table):
    name, suffix = "a Parquet file", ".parquet"

    def as_user_error(self, path: Path) -> AbstractContextManager[None]:
        try:
            from pyarrow import ArrowException
        except ImportError:
            return super().as_user_error(path)
        return as_user_error(path, self.name, (ArrowException,))

    def memory_needed(self, path: Path, options: ReadOptions) -> int:
        with _open_table(path, options) as opened:
            _check_types(path, opened)
            return (
                8 * opened.file.metadata.num_rows * (2 * len(opened.index.features) + 3)
            )  # Arrow columns and our copy

    def raw(self, path: Path, options: ReadOptions) -> RawTable:
        columns = options.columns
        with _open_table(path, options) as opened:
            header, index = opened.header, opened.index
            used = [*index.others, *index.features]
            read = opened.file.read([opened.names[k] for k in used], use_pandas_metadata=False)
        table = {header[k]: read.column(opened.names[k]) for k in used}
        cells = CellParser.from_markers(columns.missing, header, columns.decimal)
        features = [header[column] for column in index.features]
        numbers, texts = np.empty((read.num_rows, len(features))), {}
        for k, name in enumerate(features):
            numbers[:, k], rows, strings = _cells(path, table[name], cells)
            if len(rows):
                texts[k] = (rows, strings)
        clients = None if index.client is None else _text(path, header[index.client], table)
        raw = RawTable(
            path, columns, features, numbers, texts, np.arange(read.num_rows),
            row_clients(path, clients, read.num_rows, options),
            index.meaning, None, opened.renaming,
            unit="row", is_typed=True,
        )  # fmt: skip
        if index.label is not None:
            raw.label = _label(raw, header[index.label], table, cells)
        if index.split is not None:
            raw.split = name_array(path, "split", _text(path, header[index.split], table))
        if index.event is not None:
            raw.event_meaning = index.event_meaning
            raw.event = _label(raw, header[index.event], table, cells)
        if index.weights is not None:
            raw.weights, rows, strings = _cells(path, table[header[index.weights]], cells)
            if len(rows):
                raw.fail(int(rows[0]), columns.weights, strings[0], "a weight must be a number >= 0")
        if index.patient is not None:
            raw.patient = name_array(path, "patient", _text(path, header[index.patient], table))
        return raw.complete(cells, {name: _dates(table[name]) for name in index.dates}, index.derivations)


@dataclass(frozen=True)
class _Opened:
    """Open file with its columns: names in the file, and names after renaming."""

    file: Any
    names: list[str]
    header: list[str]
    index: ColumnIndex
    renaming: Renaming


@contextmanager
def _open_table(path: Path, options: ReadOptions) -> Iterator[_Opened]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow: {install_extra('parquet')}") from None
    with ParquetFile(path) as file:
        schema = file.schema_arrow
    names = [name for name in schema.names if not ROW_NUMBERS.fullmatch(name)]
    columns = options.columns
    renaming = Renaming.of(path, columns.map, names, columns.fold_case, options.labeled)
    header = renaming.header(names)
    index = index_columns(path, header, options)
    # Read texts as dictionaries: repeated texts then take no additional memory.
    used = [names[column] for column in (*index.others, *index.features)]
    with ParquetFile(path, read_dictionary=[name for name in used if _is_text(schema.field(name).type)]) as file:
        yield _Opened(file, names, header, index, renaming)


def _check_types(path: Path, opened: _Opened) -> None:
    from pyarrow import types

    index, schema = opened.index, opened.file.schema_arrow
    for k in (*index.others, *index.features):
        kind, column = schema.field(opened.names[k]).type, f"{path}: column {shown(opened.header[k])!r}"
        is_date = types.is_date(kind) or types.is_timestamp(kind)
        if types.is_temporal(kind) and not (is_date and k in index.dates.values()):
            raise UserError(f"{column} holds {shown(kind, 40)}; {date_advice(opened.header[k])}")
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        if not number and not _is_text(kind) and not is_date:
            raise UserError(f"{column} holds {shown(kind, 40)}; must be numbers or text")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _cells(path: Path, column: Any, cells: CellParser) -> tuple[Array, Array, Array]:
    """Return a column as numbers (NaN: missing or text), the rows with texts, and the texts."""
    if not _is_text(column.type):
        return _numbers(column), np.array([], dtype=np.int64), np.array([], dtype=np.str_)
    codes, names = _dictionary_codes(path, column)
    meanings = [cells.parse(name) for name in names.tolist()]
    is_text = np.array([isinstance(meaning, str) for meaning in meanings] + [False])  # the last one: null
    numbers = np.array([np.nan if isinstance(meaning, str) else meaning for meaning in meanings] + [np.nan])
    rows = np.flatnonzero(is_text[codes])
    return numbers[codes], rows, name_array(path, "category", [str(meanings[k]) for k in codes[rows]])


def _numbers(column: Any) -> Array:
    from pyarrow import float64, types

    if types.is_decimal(column.type) or types.is_boolean(column.type):
        column = column.cast(float64())
    return column.to_numpy().astype(float)


def _dictionary_codes(path: Path, column: Any) -> tuple[Array, Array]:
    """Return a text column as indices [N] into an array of distinct texts; -1 for null."""
    codes, known = [np.array([], dtype=np.int64)], np.array([], dtype=np.str_)
    for chunk in column.unify_dictionaries().chunks:
        known = name_array(path, "name", ["" if name is None else name for name in chunk.dictionary.to_pylist()])
        codes.append(chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))
    return np.concatenate(codes), known


def _label(raw: RawTable, name: str, table: dict[str, Any], cells: CellParser) -> Array:
    column = table[name]
    if not _is_text(column.type):
        return _numbers(column)
    codes, names = _dictionary_codes(raw.path, column)
    return label_column(raw, cells, np.append(names, "")[codes].tolist(), name)


def _dates(column: Any) -> list[str]:
    """Return a column of dates or texts as texts; "" for null."""
    from pyarrow import string, timestamp, types

    if types.is_timestamp(column.type):
        column = column.cast(timestamp("us", column.type.tz))  # more digits are not ISO 8601
    return ["" if text is None else text for text in column.cast(string()).to_pylist()]


def _text(path: Path, name: str, table: dict[str, Any]) -> list[str]:
    """Return a column as texts; raise UserError if a value is missing."""
    column = table[name]
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise UserError(f"{path}: row {row}: column {shown(name)!r} is empty; every row must have a value")
    if not _is_text(column.type):
        return [str(value) for value in column.to_pylist()]
    codes, names = _dictionary_codes(path, column)
    return names[codes].tolist() if len(codes) else []
