"""Column indices of label, client, split, weights, event and features in the header of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fco_cli.data.format import check_unique, format_list, shown
from fco_cli.data.label import Label
from fco_cli.data.source import Columns, ReadOptions
from fco_cli.errors import UserError


@dataclass(frozen=True)
class ColumnIndex:
    """Column indices of a table by role."""

    meaning: Label
    label: int | None  # None: the rows are for prediction
    client: int | None  # None: one file per client, or rows without clients
    split: int | None
    weights: int | None
    features: list[int]
    event_meaning: Label | None = None
    event: int | None = None

    @property
    def others(self) -> list[int]:
        """Indices of all columns that are read, except the features."""
        return [k for k in (self.label, self.client, self.split, self.weights, self.event) if k is not None]


def index_columns(path: Path, header: Sequence[str], options: ReadOptions) -> ColumnIndex:
    """Return the column indices by role; columns without another role are features."""
    columns, index = options.columns, {name: k for k, name in enumerate(header)}
    meaning = Label.of(columns.label, header)
    event = None if columns.event is None else Label.of(columns.event, header)
    role_columns = (meaning.column, columns.client, columns.split, columns.weights, event and event.column)
    special = [name for name in role_columns if name]
    check_unique(path, "the columns for label, client, split, weights and event", special)
    required = _required_columns(meaning, event, options)
    _check_columns_exist(path, header, options, required)
    dropped = set(columns.drop)
    used = [name for name in header if name not in dropped]
    check_unique(path, "columns", used)
    if "" in used:
        raise UserError(f"{path}: column {index[''] + 1} has no name; remove it if it holds row numbers")
    if options.labeled and options.in_folder and not columns.dealt and columns.client in used:
        raise UserError(
            f"{path}: has a column {shown(columns.client)!r}, but a file in a folder holds one client, named after the "
            "file: drop the column (drop), or join all files into one table"
        )
    features = [index[name] for name in used if name not in special]
    if not features:
        raise UserError(f"{path}: no feature columns are left")
    if invalid := [name for name in columns.categorical if name in special]:
        raise UserError(f"{path}: {shown(invalid[0])!r} is declared as categorical, but is not a feature")
    if options.labeled and columns.split in used:
        required.append(columns.split)
    indices = {name: index[name] for name in required}
    client, weights = indices.get(columns.client), indices.get(columns.weights or "")
    event_index = None if event is None else indices.get(event.column)
    return ColumnIndex(
        meaning, indices.get(meaning.column), client, indices.get(columns.split), weights, features, event, event_index
    )


def _required_columns(meaning: Label, event: Label | None, options: ReadOptions) -> list[str]:
    """Return the required columns other than features; there are none for prediction."""
    columns = options.columns
    if not options.labeled:
        return []
    client = [] if options.in_folder or columns.dealt else [columns.client]
    split = [] if columns.split == Columns.split else [columns.split]
    weights = [columns.weights] if columns.weights else []
    return [meaning.column, *client, *split, *weights, *([] if event is None else [event.column])]


def _check_columns_exist(path: Path, header: Sequence[str], options: ReadOptions, required: list[str]) -> None:
    columns, existing = options.columns, set(header)
    dropped = columns.drop if options.labeled else ()  # a table to predict from may lack dropped columns
    for name in (*dropped, *columns.categorical, *required):
        if name not in existing:
            hint = " (task.partition assigns rows without clients to clients)" if name == columns.client else ""
            raise UserError(f"{path}: column {shown(name)!r} not found; columns are {format_list(header)}{hint}")
    if dropped_and_used := [name for name in (*required, *columns.categorical) if name in columns.drop]:
        raise UserError(f"{path}: column {shown(dropped_and_used[0])!r} is both dropped and used")
