"""Column profiles of a table by client: type, missing values, range and categories, including invalid columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fco_cli.csv_writer import as_csv
from fco_cli.data.cells import category_name
from fco_cli.data.format import FederatedData, format_list
from fco_cli.data.sparse import is_sparse
from fco_cli.data.tables import RawTable
from fco_cli.problem.layout import Array

MAX_CLIENT_COLUMNS = 6  # at most this many have their own column in the printed table
MAX_PRINTED_COLUMNS = 200  # printed at most


@dataclass
class Column:
    """Profile of one column at one or more clients."""

    name: str
    kinds: set[str] = field(default_factory=set)
    rows: int = 0
    missing: int = 0
    low: float = np.inf
    high: float = -np.inf
    categories: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        """Type of the column; mixed if it differs between clients."""
        kinds = self.kinds - {"empty"} or {"empty"}
        return kinds.copy().pop() if len(kinds) == 1 else "mixed"

    @property
    def share(self) -> float:
        """Share of missing values."""
        return self.missing / max(self.rows, 1)

    @property
    def range(self) -> str:
        return f"{self.low:g} to {self.high:g}" if self.low <= self.high else ""

    @property
    def texts(self) -> str:
        """Categories with their counts, most frequent first."""
        return format_list([f"{name} {count}" for name, count in self.categories.most_common()], 5)

    def add(self, other: Column) -> None:
        self.kinds |= other.kinds
        self.rows, self.missing = self.rows + other.rows, self.missing + other.missing
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.categories += other.categories


Profile = dict[str, list[Column]]  # by client


def profile_tables(tables: Sequence[RawTable]) -> Profile:
    """Return the profile of unvalidated tables; the label is the last column."""
    profile: Profile = {}
    for table in tables:
        kinds = [table.kind(k) for k in range(len(table.features))]
        for client in np.unique(table.client).tolist():
            rows = np.flatnonzero(table.client == client)
            profile[client] = [*_features(table, kinds, rows), *_label(table, rows)]
    return dict(sorted(profile.items()))


def profile_data(data: FederatedData) -> Profile:
    """Return the profile of validated data; empty for sparse rows, which have many columns and no missing values."""
    profile: Profile = {}
    if is_sparse(data.x):
        return profile
    for client, table in data.by_client():
        columns = _numeric(table.names, table.x, ["number"] * len(table.names))
        for k, levels in table.levels.items():
            codes = table.x[:, k]
            counts = Counter(levels[int(code)] for code in codes[~np.isnan(codes)])
            columns[k] = _categorical(table.names[k], counts, len(codes))
        profile[client] = columns
    return profile


def merge_clients(profile: Profile) -> list[Column]:
    """Return the columns over all clients."""
    first = next(iter(profile.values()), [])
    total = {column.name: Column(column.name) for column in first}
    for columns in profile.values():
        for column in columns:
            total.setdefault(column.name, Column(column.name)).add(column)
    return list(total.values())


def profile_csv(profile: Profile) -> bytes:
    """Return a CSV table with one line per client and column."""
    rows = []
    for client, columns in profile.items():
        for column in columns:
            ends = [column.low, column.high] if column.low <= column.high else ["", ""]
            rows.append([client, column.name, column.kind, column.rows, column.missing, *ends, column.texts])
    return as_csv(["client", "column", "type", "rows", "missing", "low", "high", "categories"], rows).encode()


def _features(table: RawTable, kinds: list[str], rows: Array) -> list[Column]:
    is_selected = np.zeros(len(table.lines), dtype=bool)
    is_selected[rows] = True
    columns = _numeric(table.features, table.numbers[rows], kinds)
    for k in {*table.texts, *(k for k, kind in enumerate(kinds) if kind == "category")}:
        text_rows, strings = table.texts.get(k, (np.array([], dtype=np.int64), np.array([], dtype=np.str_)))
        texts = Counter(strings[is_selected[text_rows]].tolist())
        if kinds[k] == "category":
            numbers = table.numbers[rows, k]
            texts += Counter(category_name(value) for value in numbers[~np.isnan(numbers)])
            columns[k] = _categorical(table.features[k], texts, len(rows))
        else:
            columns[k].missing -= texts.total()
            columns[k].categories = texts
    return columns


def _label(table: RawTable, rows: Array) -> list[Column]:
    if table.label is None:
        return []
    name, values = f"{table.meaning.column} (label)", table.label[rows]
    if values.dtype.kind == "U":
        return [_categorical(name, Counter(word for word in values.tolist() if word), len(rows))]
    return _numeric([name], values[:, None], ["number"])


def _numeric(names: list[str], x: Array, kinds: list[str]) -> list[Column]:
    """Return the columns with counts, missing values and range of their numbers."""
    values = x.astype(float, copy=False)
    missing = np.isnan(values).sum(axis=0).tolist()
    low = np.fmin.reduce(values, initial=np.inf).tolist()
    high = np.fmax.reduce(values, initial=-np.inf).tolist()
    return [
        Column(name, {"empty" if kind == "number" and absent == len(x) else kind}, len(x), absent, smallest, largest)
        for name, kind, absent, smallest, largest in zip(names, kinds, missing, low, high, strict=True)
    ]


def _categorical(name: str, counts: Counter[str], rows: int) -> Column:
    return Column(name, {"category" if counts else "empty"}, rows, rows - counts.total(), categories=counts)
