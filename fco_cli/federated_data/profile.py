"""Every column of a table at every client: its type, what is missing, its range and its categories, good or bad."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fco_cli.federated_data.cells import category
from fco_cli.federated_data.export import as_text
from fco_cli.federated_data.format import FederatedData, listed
from fco_cli.federated_data.tables import RawTable
from fco_cli.problem.layout import Array

FEW_CLIENTS = 6  # each has a column of its own in the printed table
MOST_COLUMNS = 200  # that are printed


@dataclass
class Column:
    """One column at one client, or at several."""

    name: str
    kinds: set[str] = field(default_factory=set)
    rows: int = 0
    missing: int = 0
    low: float = np.inf
    high: float = -np.inf
    categories: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        """What it is at all clients together; numbers here and texts there are mixed."""
        kinds = self.kinds - {"empty"} or {"empty"}
        return kinds.copy().pop() if len(kinds) == 1 else "mixed"

    @property
    def share(self) -> float:
        """Of values that are missing."""
        return self.missing / max(self.rows, 1)

    @property
    def range(self) -> str:
        return f"{self.low:g} to {self.high:g}" if self.low <= self.high else ""

    @property
    def texts(self) -> str:
        """The categories, the most frequent first."""
        return listed([f"{name} {count}" for name, count in self.categories.most_common()], 5)

    def add(self, other: Column) -> None:
        self.kinds |= other.kinds
        self.rows, self.missing = self.rows + other.rows, self.missing + other.missing
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.categories += other.categories


Profile = dict[str, list[Column]]  # by client


def of_tables(tables: Sequence[RawTable]) -> Profile:
    """Of tables as they were read; the label comes last."""
    profile: Profile = {}
    for table in tables:
        for client in np.unique(table.client).tolist():
            rows = np.flatnonzero(table.client == client)
            own = list(_features(table, rows)) + list(_label(table, rows))
            for total, column in zip(
                profile.setdefault(client, [Column(column.name) for column in own]), own, strict=True
            ):
                total.add(column)
    return dict(sorted(profile.items()))


def of_data(data: FederatedData) -> Profile:
    """Of checked data."""
    profile: Profile = {}
    for client, table in data.by_client():
        profile[client] = [
            _categorical(name, [levels[int(code)] for code in values[~np.isnan(values)]], len(values))
            if (levels := table.levels.get(k))
            else _numeric(name, values, "number")
            for k, (name, values) in enumerate(zip(table.names, table.x.T, strict=True))
        ]
    return profile


def overall(profile: Profile) -> list[Column]:
    """All clients together."""
    first = next(iter(profile.values()))
    total = {column.name: Column(column.name) for column in first}
    for columns in profile.values():
        for column in columns:
            total.setdefault(column.name, Column(column.name)).add(column)
    return list(total.values())


def as_csv(profile: Profile) -> bytes:
    """A line for every client and column."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", "column", "type", "rows", "missing", "low", "high", "categories"])
    for client, columns in profile.items():
        for column in columns:
            ends = [column.low, column.high] if column.low <= column.high else ["", ""]
            writer.writerow(
                [
                    as_text(client),
                    as_text(column.name),
                    column.kind,
                    column.rows,
                    column.missing,
                    *ends,
                    as_text(column.texts),
                ]
            )
    return text.getvalue().encode()


def _features(table: RawTable, rows: Array) -> Iterator[Column]:
    here = np.zeros(len(table.lines), dtype=bool)
    here[rows] = True
    for k, name in enumerate(table.features):
        values, texts = table.numbers[rows, k], Counter[str]()
        if k in table.texts:
            own, words = table.texts[k]
            texts = Counter(words[here[own]].tolist())
        kind = table.kind(k)
        if kind == "category":
            numbers = [category(value) for value in values[~np.isnan(values)]]
            yield _categorical(name, [*numbers, *texts.elements()], len(rows))
            continue
        column = _numeric(name, values, kind)
        column.missing -= texts.total()
        column.categories = texts
        yield column


def _label(table: RawTable, rows: Array) -> Iterator[Column]:
    if table.label is not None:
        name, values = f"{table.meaning.column} (label)", table.label[rows]
        if values.dtype.kind == "U":
            yield _categorical(name, [word for word in values.tolist() if word], len(rows))
        else:
            yield _numeric(name, values, "number")


def _numeric(name: str, values: Array, kind: str) -> Column:
    missing = np.isnan(values)
    given = values[~missing]
    ends = (float(given.min()), float(given.max())) if len(given) else (np.inf, -np.inf)
    return Column(name, {kind if len(given) or kind != "number" else "empty"}, len(values), int(missing.sum()), *ends)


def _categorical(name: str, words: list[str], rows: int) -> Column:
    kind = "category" if words else "empty"
    return Column(name, {kind}, rows, rows - len(words), categories=Counter(words))
