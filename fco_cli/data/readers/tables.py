"""Tables in files: column roles, cells, and the base of the CSV and Parquet readers.

A table is one file with a client column, or a folder with one file per client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fco_cli.data.format import UNASSIGNED, Arrays, check_unique, format_list, name_array, shown
from fco_cli.data.readers.cells import Label
from fco_cli.data.readers.dates import Derivation
from fco_cli.data.readers.numerals import by_option
from fco_cli.data.readers.raw_table import RawTable
from fco_cli.data.readers.source import Columns, Format, ReadOptions
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class ColumnIndex:
    """Column indices of a table by role."""

    meaning: Label
    label: int | None  # None: the rows are for prediction, or the label is derived
    client: int | None  # None: one file per client, or rows without clients
    split: int | None
    weights: int | None
    features: list[int]
    event_meaning: Label | None = None
    event: int | None = None
    patient: int | None = None
    dates: dict[str, int] = field(default_factory=dict)  # arguments of the derivations
    derivations: list[Derivation] = field(default_factory=list)

    @property
    def others(self) -> list[int]:
        """Indices of all columns that are read, except the features."""
        roles = (self.label, self.client, self.split, self.weights, self.event, self.patient, *self.dates.values())
        return list(dict.fromkeys(k for k in roles if k is not None))


def index_columns(path: Path, header: Sequence[str], options: ReadOptions) -> ColumnIndex:
    """Return the column indices by role; columns without another role are features."""
    columns, index = options.columns, {name: k for k, name in enumerate(header)}
    derived = [Derivation.name_in(text) for text in columns.derive]
    check_unique(path, "derive", derived)
    meaning = Label.of(columns.label, [*header, *derived])
    event = None if columns.event is None else Label.of(columns.event, header)
    event_column = None if event is None else event.column
    roles = (meaning.column, columns.client, columns.split, columns.weights, event_column, columns.patient)
    special = [name for name in roles if name]
    check_unique(path, "the columns for label, client, split, weights, event and patient", special)
    derivations, dates = _derivations(header, options, special)
    required = _required_columns(meaning, event, options)
    _check_columns_exist(path, [*header, *derived], options, required)
    dropped = set(columns.drop)
    used = [name for name in header if name not in dropped]
    check_unique(path, "columns", used)
    if "" in used:
        raise UserError(f"{path}: column {index[''] + 1} has no name: name it, or remove it if it holds row numbers")
    if options.labeled and options.in_folder and not columns.dealt and columns.client in used:
        raise UserError(
            f"{path}: has a column {shown(columns.client)!r}, but a file in a folder holds one client, named after the "
            f"file: drop the column ({by_option('drop', columns.client)}), or join all files into one table"
        )
    features = [index[name] for name in used if name not in special and name not in dates]
    if not features and not set(derived).difference(special):
        raise UserError(f"{path}: no feature columns are left")
    if invalid := [name for name in columns.categorical if name in special and name != meaning.column]:
        raise UserError(f"{path}: {shown(invalid[0])!r} is declared as categorical, but is not a feature or the label")
    if options.labeled and columns.split in used:
        required.append(columns.split)
    indices = {name: index[name] for name in required if name in index}
    label, client, split, weights, event_index, patient = (indices.get(name or "") for name in roles)
    return ColumnIndex(
        meaning, label, client, split, weights, features, event, event_index, patient,
        {name: index[name] for one in derivations for name in (one.first, one.second)}, derivations,
    )  # fmt: skip


def _derivations(header: Sequence[str], options: ReadOptions, special: list[str]) -> tuple[list[Derivation], set[str]]:
    """Return the derived columns to compute, and the names of all their arguments, which are not features."""
    derivations, dates = [], set()
    for text in options.columns.derive:
        dates.update(Derivation.arguments_in(text))
        if options.labeled or Derivation.name_in(text) not in special:  # rows to predict from may lack the label
            derivations.append(Derivation.of(text, header))
            dates |= {derivations[-1].first, derivations[-1].second}
    return derivations, dates


def _required_columns(meaning: Label, event: Label | None, options: ReadOptions) -> list[str]:
    """Return the required columns other than features; there are none for prediction."""
    columns = options.columns
    if not options.labeled:
        return []
    client = [] if options.in_folder or columns.dealt else [columns.client]
    split = [] if columns.split == Columns.split else [columns.split]
    weights = [columns.weights] if columns.weights else []
    patient = [columns.patient] if columns.patient else []
    return [meaning.column, *client, *split, *weights, *([] if event is None else [event.column]), *patient]


def _check_columns_exist(path: Path, header: Sequence[str], options: ReadOptions, required: list[str]) -> None:
    columns, existing = options.columns, set(header)
    dropped = columns.drop if options.labeled else ()  # a table to predict from may lack dropped columns
    label = Label.of(columns.label, header).column
    categorical = [name for name in columns.categorical if options.labeled or name != label]
    for name in (*dropped, *categorical, *required):
        if name not in existing:
            hint = " (task.partition assigns rows without clients to clients)" if name == columns.client else ""
            if len(header) == 1 or "" in header:
                hint = "; the first line must hold the column names, separated by commas, semicolons or tabs"
            raise UserError(f"{path}: column {shown(name)!r} not found; columns are {format_list(header)}{hint}")
    if dropped_and_used := [name for name in (*required, *columns.categorical) if name in columns.drop]:
        raise UserError(f"{path}: column {shown(dropped_and_used[0])!r} is both dropped and used")


class Table(Format):
    """Base of table formats; text labels become 0, 1, 2, ... in alphabetical order over all files."""

    @abstractmethod
    def raw(self, path: Path, options: ReadOptions) -> RawTable:
        """Read one file without validating its columns."""

    def read(self, path: Path, options: ReadOptions) -> Arrays:
        return self.raw(path, options).arrays()

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        first_path, first = parts[0]
        for path, part in parts[1:]:
            if "y" in part and (part["y"].dtype.kind == "U") != (first["y"].dtype.kind == "U"):
                raise UserError(
                    f"{path}: labels must be all numbers or all texts; {first_path.name} has the other type"
                )
        categories: Arrays = {}
        if len(parts) > 1:
            parts = [(path, _reorder_columns(path, part, first_path, first)) for path, part in parts]
            parts, categories = _same_categories(parts)
        arrays = super().join(parts) | categories
        if "y" in arrays and arrays["y"].dtype.kind == "U":
            arrays["classes"], arrays["y"] = np.unique(arrays["y"], return_inverse=True)
        return arrays


def _reorder_columns(path: Path, part: Arrays, first_path: Path, first: Arrays) -> Arrays:
    """Return the arrays of a file with its features in the order of the first file."""
    own, expected = part["features"].tolist(), first["features"].tolist()
    if own == expected:
        return part
    lacking, extra = (sorted(set(one) - set(other)) for one, other in ((expected, own), (own, expected)))
    if lacking or extra:
        differences = [
            f"{what} {format_list(names)}"
            for what, names in (("missing columns", lacking), ("additional columns", extra))
            if names
        ]
        hint = ""
        with_unit = next((name for name in [*lacking, *extra] if name.rpartition(" [")[0] in [*lacking, *extra]), None)
        if with_unit is not None:
            rule = by_option("map", f"{with_unit.rpartition(' [')[0]}={with_unit}")
            hint = f"; if the unit is the same, state it ({rule})"
        elif len(lacking) == len(extra) == 1 and not any(name.endswith("]") for name in (*lacking, *extra)):
            hint = f"; if they are the same column, rename it ({by_option('map', f'{extra[0]}={lacking[0]}')})"
        raise UserError(f"{path}: its columns differ from those of {first_path.name}: {'; '.join(differences)}{hint}")
    index = {name: k for k, name in enumerate(own)}
    order = np.array([index[name] for name in expected])
    moved = {"x": part["x"][:, order], "features": first["features"]}
    if "category_of" in part:
        moved["category_of"] = np.argsort(order)[part["category_of"]]
    return part | moved


def _same_categories(parts: list[tuple[Path, Arrays]]) -> tuple[list[tuple[Path, Arrays]], Arrays]:
    """Renumber the categories of all files by their joint category names."""
    levels: dict[int, Array] = {}
    source: dict[int, Path] = {}
    for path, part in parts:
        for feature in np.unique(part.get("category_of", np.array([], dtype=int))).tolist():
            names = part["categories"][part["category_of"] == feature]
            levels[feature] = np.unique(np.append(levels[feature], names)) if feature in levels else names
            source.setdefault(feature, path)
    joined = []
    for path, part in parts:
        x, owner = part["x"], part.get("category_of", np.array([], dtype=int))
        for feature, names in levels.items():
            codes = x[:, feature]
            present = ~np.isnan(codes)
            categories = part["categories"][owner == feature] if (owner == feature).any() else None
            if categories is None and present.any():
                raise UserError(
                    f"{path}: column {shown(part['features'][feature])!r} holds numbers, that of "
                    f"{source[feature].name} texts: declare it as categorical, or use one type in all files"
                )
            if categories is not None:
                codes[present] = np.searchsorted(names, categories)[codes[present].astype(np.int64)]
        joined.append((path, {name: array for name, array in part.items() if not name.startswith("categor")}))
    if not levels:
        return joined, {}
    owner = np.concatenate([np.full(len(names), feature) for feature, names in sorted(levels.items())])
    return joined, {"categories": np.concatenate([levels[k] for k in sorted(levels)]), "category_of": owner}


def row_clients(path: Path, names: Sequence[str] | None, rows: int, options: ReadOptions) -> Array:
    """Return the client of each row: from the client column, the file name, or none."""
    if names is not None:
        return name_array(path, "client", names)
    return name_array(path, "client", [path.stem if options.in_folder else UNASSIGNED] * rows)
