"""Parquet: the types of the columns are known before any of them is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays, as_names, shown
from fco_cli.federated_data.source import Wanted
from fco_cli.federated_data.tables import NO_DATES, Places, Table, places
from fco_cli.problem.layout import Array

ROW_NUMBERS = re.compile(r"__index_level_\d+__")  # pandas' own column for an index without a name


class Parquet(Table):
    name, ending = "a Parquet file", ".parquet"

    def needs(self, path: Path, wanted: Wanted) -> int:
        with _opened(path, wanted) as (file, header, found):
            _check_types(path, file.schema_arrow, header, found)
            return 8 * file.metadata.num_rows * (2 * len(found.features) + 3)  # as Arrow's columns, and as ours

    def read(self, path: Path, wanted: Wanted) -> Arrays:
        with _opened(path, wanted) as (file, header, found):
            special = [place for place in (found.label, found.client, found.split) if place is not None]
            table = file.read([header[place] for place in (*special, *found.features)], use_pandas_metadata=False)
        x = np.empty((table.num_rows, len(found.features)))
        for k, place in enumerate(found.features):
            x[:, k] = _numbers(path, header[place], table)
        client = np.full(len(x), path.stem) if found.client is None else _text(path, header[found.client], table)
        label = header[found.label]
        words = _is_text(table.schema.field(label).type)
        arrays = {
            "x": x,
            "y": _text(path, label, table) if words else _numbers(path, label, table),
            "client": client,
            "features": as_names(path, "feature", [header[place] for place in found.features]),
        }
        return arrays | ({} if found.split is None else {"split": _text(path, header[found.split], table)})


@contextmanager
def _opened(path: Path, wanted: Wanted) -> Iterator[tuple[Any, list[str], Places]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow: pip install 'fco-cli[parquet]'") from None
    with ParquetFile(path) as file:
        header = [name for name in file.schema_arrow.names if not ROW_NUMBERS.fullmatch(name)]
    found = places(path, header, wanted)
    # As dictionaries, texts take the room that they take in the file, however often they are repeated.
    texts = [header[place] for place in (found.label, found.client, found.split) if place is not None]
    with ParquetFile(path, read_dictionary=texts) as file:
        yield file, header, found


def _check_types(path: Path, schema: Any, header: list[str], found: Places) -> None:
    from pyarrow import types

    names = [place for place in (found.label, found.client, found.split) if place is not None]
    for place, may_be_text in (*((k, False) for k in found.features), *((k, True) for k in names)):
        kind, column = schema.field(header[place]).type, f"{path}: column {shown(header[place])!r}"
        if types.is_temporal(kind):
            raise UserError(f"{column} holds {shown(kind, 40)}; {NO_DATES}")
        number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
        if not number and not (may_be_text and _is_text(kind)):
            allowed = "must be text or numbers" if may_be_text else "every feature must be a number"
            raise UserError(f"{column} holds {shown(kind, 40)}; {allowed}")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)


def _whole(path: Path, name: str, table: Any) -> Any:
    """A column in which no cell is missing."""
    column = table.column(name)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise UserError(f"{path}: row {row}: column {shown(name)!r} is empty; it must be given in every row")
    return column


def _numbers(path: Path, name: str, table: Any) -> Array:
    from pyarrow import float64, types

    column = _whole(path, name, table)
    if types.is_decimal(column.type):
        column = column.cast(float64())
    return column.to_numpy().astype(float)


def _text(path: Path, name: str, table: Any) -> Array:
    column = _whole(path, name, table)
    if not _is_text(column.type):
        return as_names(path, "name", [str(value) for value in column.to_pylist()])
    parts = [np.array([], dtype=np.str_)]
    for chunk in column.unify_dictionaries().chunks:
        names = as_names(path, "name", chunk.dictionary.to_pylist())
        parts.append(names[chunk.indices.to_numpy()])
    return np.concatenate(parts)
