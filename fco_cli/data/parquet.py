"""Reader of Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.cells import NO_DATES, Cells
from fco_cli.data.format import as_names, shown
from fco_cli.data.places import Places, places
from fco_cli.data.source import Wanted, understood
from fco_cli.data.tables import RawTable, Table, label_column, owners
from fco_cli.errors import UserError, install_extra
from fco_cli.problem.layout import Array

ROW_NUMBERS = re.compile(r"__index_level_\d+__")  # column of an unnamed pandas index


class Parquet(Table):
    name, ending = "a Parquet file", ".parquet"

    def understood(self, path: Path) -> AbstractContextManager[None]:
        try:
            from pyarrow import ArrowException
        except ImportError:
            return super().understood(path)
        return understood(path, self.name, (ArrowException,))

    def needs(self, path: Path, wanted: Wanted) -> int:
        with _opened(path, wanted) as (file, header, found):
            _check_types(path, file.schema_arrow, header, found)
            return 8 * file.metadata.num_rows * (2 * len(found.features) + 3)  # Arrow columns and our copy

    def raw(self, path: Path, wanted: Wanted) -> RawTable:
        with _opened(path, wanted) as (file, header, found):
            table = file.read([header[place] for place in (*found.others, *found.features)], use_pandas_metadata=False)
        cells, features = Cells.where(wanted.columns.missing, header), [header[place] for place in found.features]
        numbers, texts = np.empty((table.num_rows, len(features))), {}
        for k, name in enumerate(features):
            numbers[:, k], rows, words = _cells(path, table.column(name), cells)
            if len(rows):
                texts[k] = (rows, words)
        cells.forget(numbers, features)
        clients = None if found.client is None else _text(path, header[found.client], table)
        raw = RawTable(
            path, wanted.columns, features, numbers, texts, np.arange(table.num_rows),
            owners(path, clients, table.num_rows, wanted),
            found.meaning,
            None if found.label is None else _label(path, table.column(header[found.label]), cells),
            unit="row",
        )  # fmt: skip
        if found.split is not None:
            raw.split = as_names(path, "split", _text(path, header[found.split], table))
        if found.event is not None:
            raw.event_meaning = found.event_meaning
            raw.event = _label(path, table.column(header[found.event]), cells)
        if found.weights is not None:
            raw.weights, rows, words = _cells(path, table.column(header[found.weights]), cells)
            if len(rows):
                raw.fail(int(rows[0]), wanted.columns.weights, words[0], "a weight must be a number >= 0")
        return raw


@contextmanager
def _opened(path: Path, wanted: Wanted) -> Iterator[tuple[Any, list[str], Places]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow: {install_extra('parquet')}") from None
    with ParquetFile(path) as file:
        schema = file.schema_arrow
    header = [name for name in schema.names if not ROW_NUMBERS.fullmatch(name)]
    found = places(path, header, wanted)
    # Read texts as dictionaries: repeated texts then take no additional memory.
    used = [header[place] for place in (*found.others, *found.features)]
    with ParquetFile(path, read_dictionary=[name for name in used if _is_text(schema.field(name).type)]) as file:
        yield file, header, found


def _check_types(path: Path, schema: Any, header: list[str], found: Places) -> None:
    from pyarrow import types

    for place in (*found.others, *found.features):
        kind, column = schema.field(header[place]).type, f"{path}: column {shown(header[place])!r}"
        if types.is_temporal(kind):
            raise UserError(f"{column} holds {shown(kind, 40)}; {NO_DATES}")
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        if not number and not _is_text(kind):
            raise UserError(f"{column} holds {shown(kind, 40)}; must be numbers or text")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _cells(path: Path, column: Any, cells: Cells) -> tuple[Array, Array, Array]:
    """Return a column as numbers (NaN: missing or text), the rows with texts, and the texts."""
    if not _is_text(column.type):
        return _numbers(column), np.array([], dtype=np.int64), np.array([], dtype=np.str_)
    places, names = _words(path, column)
    meanings = [cells.meaning(name) for name in names.tolist()]
    is_text = np.array([isinstance(meaning, str) for meaning in meanings] + [False])  # the last one: null
    numbers = np.array([np.nan if isinstance(meaning, str) else meaning for meaning in meanings] + [np.nan])
    rows = np.flatnonzero(is_text[places])
    return numbers[places], rows, as_names(path, "category", [str(meanings[k]) for k in places[rows]])


def _numbers(column: Any) -> Array:
    from pyarrow import float64, types

    if types.is_decimal(column.type) or types.is_boolean(column.type):
        column = column.cast(float64())
    return column.to_numpy().astype(float)


def _words(path: Path, column: Any) -> tuple[Array, Array]:
    """Return a text column as indices [N] into an array of distinct texts; -1 for null."""
    places, known = [np.array([], dtype=np.int64)], np.array([], dtype=np.str_)
    for chunk in column.unify_dictionaries().chunks:
        known = as_names(path, "name", ["" if name is None else name for name in chunk.dictionary.to_pylist()])
        places.append(chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))
    return np.concatenate(places), known


def _label(path: Path, column: Any, cells: Cells) -> Array:
    if not _is_text(column.type):
        return _numbers(column)
    places, names = _words(path, column)
    return label_column(path, cells, np.append(names, "")[places].tolist())


def _text(path: Path, name: str, table: Any) -> list[str]:
    """Return a column as texts; raise UserError if a value is missing."""
    column = table.column(name)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise UserError(f"{path}: row {row}: column {shown(name)!r} is empty; every row must have a value")
    if not _is_text(column.type):
        return [str(value) for value in column.to_pylist()]
    places, names = _words(path, column)
    return names[places].tolist() if len(places) else []
