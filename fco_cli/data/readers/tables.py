"""Tables in files: column roles, cells, and the base of the CSV and Parquet readers.

A table is one file with a client column, or a folder with one file per client.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from fco_cli.data.format import UNASSIGNED, Arrays, check_unique, format_list, name_array, shown
from fco_cli.data.readers.cells import (
    COMMA_ADVICE,
    DATE,
    DATE_ADVICE,
    DECIMAL_COMMA,
    TEXT_ADVICE,
    CellParser,
    Label,
    category_name,
)
from fco_cli.data.readers.source import Columns, Format, ReadOptions
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array


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


@dataclass
class RawTable:
    """Content of one file before validation, so that `fco-data describe` can show invalid columns."""

    path: Path
    columns: Columns
    features: list[str]
    numbers: Array  # [N, d]; NaN: missing or text
    texts: dict[int, tuple[Array, Array]]  # by feature: the rows with text cells, and the texts
    lines: Array  # [N], line number of each row in the file
    client: Array
    meaning: Label
    label: Array | None  # numbers (NaN: missing) or texts (empty: missing)
    split: Array | None = None
    weights: Array | None = None
    unit: str = "line"  # what `lines` counts
    event_meaning: Label | None = None
    event: Array | None = None  # same format as the label

    def kind(self, feature: int) -> str:
        """Return the type of a feature: number, category, date, mixed or empty."""
        numbers = ~np.isnan(self.numbers[:, feature]).all()
        if self.features[feature] in self.columns.categorical:
            return "category" if numbers or feature in self.texts else "empty"
        if feature not in self.texts:
            return "number" if numbers else "empty"
        if any(DATE.match(text) for text in np.unique(self.texts[feature][1])):
            return "date"
        return "mixed" if numbers else "category"

    def arrays(self) -> Arrays:
        """Return the arrays of the neutral format; raise UserError if a column cannot be used."""
        categorical = self._categorical()
        x, names, category_of = self.numbers, [], []
        for feature in categorical:
            levels, codes = self.categories(feature)
            x[:, feature] = codes
            names.append(levels)
            category_of.append(np.full(len(levels), feature))
        arrays = {"x": x, "client": self.client, "features": name_array(self.path, "feature", self.features)}
        if names:
            arrays |= {"categories": np.concatenate(names), "category_of": np.concatenate(category_of)}
        if self.label is not None:
            arrays |= self._labels(self.label)
        if self.split is not None:
            arrays["split"] = self.split
        if self.weights is not None:
            if (wrong := ~((self.weights >= 0) & (self.weights < np.inf))).any():
                row = int(np.argmax(wrong))
                self.fail(row, self.columns.weights, self.weights[row], "a weight must be a number >= 0")
            arrays["weights"] = self.weights
        return arrays

    def _categorical(self) -> list[int]:
        """Return the categorical features; raise UserError for dates and for texts among numbers."""
        declared = [k for k, name in enumerate(self.features) if name in self.columns.categorical]
        for feature in sorted({*self.texts}.difference(declared)):
            kind, name = self.kind(feature), self.features[feature]
            rows, texts = self.texts[feature]
            if kind == "date":
                first = next(i for i, text in enumerate(texts) if DATE.match(text))
                self.fail(int(rows[first]), name, texts[first], DATE_ADVICE)
            if (comma := _first_decimal_comma(texts)) is not None:
                advice = f"{COMMA_ADVICE}, or declare the column as categorical if its texts are names"
                self.fail(int(rows[comma]), name, texts[comma], advice)
            if kind == "mixed":
                share = f"{np.count_nonzero(~np.isnan(self.numbers[:, feature]))} of {len(self.lines)} rows"
                self.fail(int(rows[0]), name, texts[0], f"{share} have a number there; {TEXT_ADVICE}")
        return sorted({*self.texts, *declared})

    def categories(self, feature: int) -> tuple[Array, Array]:
        """Return the sorted category names of a column and the index of each row's category [N], NaN if missing."""
        numbers = self.numbers[:, feature]
        rows = np.flatnonzero(~np.isnan(numbers))
        values, which = np.unique(numbers[rows], return_inverse=True)
        names = name_array(self.path, "category", [category_name(value) for value in values] or [""])
        texts = names[which] if len(values) else np.array([], dtype=np.str_)
        if feature in self.texts:
            rows, texts = np.append(rows, self.texts[feature][0]), np.append(texts, self.texts[feature][1])
        levels, member = np.unique(texts, return_inverse=True)
        codes = np.full(len(numbers), np.nan)
        codes[rows.astype(np.int64)] = member
        return levels, codes

    def _labels(self, label: Array) -> Arrays:
        missing = label == "" if label.dtype.kind == "U" else np.isnan(label)
        if missing.any():
            self.fail(int(np.argmax(missing)), self.meaning.column, "", "every row must have a label")
        if label.dtype.kind == "U" and (first := _first_decimal_comma(label)) is not None:
            self.fail(first, self.meaning.column, label[first], COMMA_ADVICE)
        arrays = {
            "y": self.meaning.apply(label) if self.event_meaning is None else self._times(label, self.event_meaning)
        }
        return arrays if self.meaning.classes is None else arrays | {"classes": self.meaning.classes}

    def _times(self, times: Array, meaning: Label) -> Array:
        """Return the labels of the Cox model: the times, negated where censored."""
        assert self.event is not None
        if self.meaning.comparison or times.dtype.kind == "U":
            self.fail(
                0, self.meaning.text, times[0], f"with event {shown(meaning.text)!r}, the label must be a time > 0"
            )
        if (wrong := ~(times > 0)).any():
            row = int(np.argmax(wrong))
            self.fail(row, self.meaning.column, times[row], "a time must be a number > 0")
        known = self.event != "" if self.event.dtype.kind == "U" else ~np.isnan(self.event)
        happened = meaning.apply(self.event)
        if not meaning.comparison:
            known &= np.isin(happened, (0, 1)) if happened.dtype.kind != "U" else False
        if not known.all():
            row = int(np.argmin(known))
            expected = "0 (censored) or 1 in every row, or a condition such as status==2"
            self.fail(row, meaning.column, self.event[row], f"the event must be {expected}")
        return np.where(happened > 0, times, -times)

    def fail(self, row: int, column: object, cell: object, advice: str) -> NoReturn:
        """Raise UserError for an invalid cell."""
        text = shown(cell, 40)
        problem = f"column {shown(column)!r} is {repr(text) if text else 'empty'}"
        line = f"client {shown(self.client[row])!r}, {self.unit} {self.lines[row]}"
        raise UserError(f"{self.path}: {line}: {problem}; {advice}")


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
        raise UserError(f"{path}: its columns differ from those of {first_path.name}: {'; '.join(differences)}")
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


def _first_decimal_comma(texts: Array) -> int | None:
    """Return the index of the first number with a decimal comma, such as 1,6, or None."""
    return next((i for i, text in enumerate(texts.tolist()) if DECIMAL_COMMA.fullmatch(text)), None)


def label_column(path: Path, cells: CellParser, texts: Sequence[str]) -> Array:
    """Return the labels as numbers if all cells are numeric, otherwise as texts."""
    known = {text: "" if text.strip() in cells.missing_texts else text.strip() for text in set(texts)}
    try:
        if not any("_" in text for text in known):
            values = {text: np.nan if not stripped else float(stripped) for text, stripped in known.items()}
            return np.array([values[text] for text in texts])
    except ValueError:
        pass
    return name_array(path, "label", [known[text] for text in texts])


def row_clients(path: Path, names: Sequence[str] | None, rows: int, options: ReadOptions) -> Array:
    """Return the client of each row: from the client column, the file name, or none."""
    if names is not None:
        return name_array(path, "client", names)
    return name_array(path, "client", [path.stem if options.in_folder else UNASSIGNED] * rows)
