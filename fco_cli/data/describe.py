"""Description of a federated data set: column profiles by client, size and heterogeneity."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import FederatedData, format_list, shown
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.readers.cells import category_name
from fco_cli.data.readers.raw_table import RawTable
from fco_cli.data.sparse import is_sparse
from fco_cli.data.statistics import Moments, aggregated_moments
from fco_cli.files import as_csv, write_atomically
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import MAX_CLASSES

MAX_CLIENT_COLUMNS = 6  # at most this many have their own column in the printed table
MAX_PRINTED_COLUMNS = 200  # printed at most
MAX_DRAWN_COLUMNS = 60  # drawn columns with missing values
MAX_NAMED_CLIENTS = 20  # clients with a label in the figure
MAX_DISTINCT_LABELS = 100  # more distinct labels mean regression


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
        texts = Counter(table.renaming.new_texts(table.features[k], strings[is_selected[text_rows]]))
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


@dataclass(frozen=True)
class Description:
    """Statistics of a data set, computed on access."""

    data: FederatedData
    profile: Profile | None = None  # of the unvalidated table

    @cached_property
    def columns(self) -> list[Column]:
        """Column profiles over all clients."""
        return merge_clients(self.profile or profile_data(self.data))

    @cached_property
    def sizes(self) -> Array:
        """Number of samples per client."""
        return np.unique(self.data.client, return_counts=True)[1]

    @cached_property
    def labels(self) -> Array | None:
        """Number of samples per client and class [M, C]; None for regression."""
        y = self.data.y
        if (
            (y < 0).any()
            or (y >= MAX_CLASSES).any()
            or (y != np.floor(y)).any()
            or len(np.unique(y)) > MAX_DISTINCT_LABELS
        ):
            return None
        classes = max(int(y.max()) + 1, 0 if self.data.classes is None else len(self.data.classes))
        require_memory(f"{self.data.source}: counts per client and class", 8 * len(self.data.clients) * classes)
        _, member = np.unique(self.data.client, return_inverse=True)
        counts = np.zeros((len(self.data.clients), classes), dtype=np.int64)
        np.add.at(counts, (member, y.astype(np.int64)), 1)
        return counts

    @property
    def label_skew(self) -> float:
        """Heterogeneity of the labels, from 0 (identical) to 1 (disjoint).

        Classification: the mean total variation distance between the labels of a client and all labels.
        Regression: the between-client share of the label variance.
        """
        if self.labels is None:
            return _between_client_share(self.data.y[:, None], self.data)
        shares = self.labels / self.labels.sum(axis=1, keepdims=True)
        pooled = self.labels.sum(axis=0) / self.labels.sum()
        return float(np.abs(shares - pooled).sum(axis=1).mean() / 2)

    @cached_property
    def feature_shift(self) -> float:
        """Between-client share of the feature variance, from 0 (identical) to 1 (disjoint)."""
        encoded = prepared(self.data, Recipe(standardize=False)).encode(self.data.raw)
        return _between_client_share(encoded, self.data)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the printed table: name and value."""
        data, sizes = self.data, self.sizes
        rows = [
            ("samples", f"{len(data.y)}"),
            ("features", f"{data.x.shape[1]} ({data.x.dtype}{', sparse' if is_sparse(data.x) else ''})"),
            ("clients", f"{len(sizes)}"),
            ("samples per client", f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}"),
        ]
        if data.split is not None:
            parts, counts = np.unique(data.split, return_counts=True)
            rows.append(("split", ", ".join(f"{part} {count}" for part, count in zip(parts, counts, strict=True))))
        if self.labels is None:
            rows.append(("labels", f"from {data.y.min():g} to {data.y.max():g}"))
            rows.append(("label shift between clients", f"{self.label_skew:.3f} of the variance"))
        else:
            rows.append(("classes", f"{(self.labels.sum(axis=0) > 0).sum()}"))
            rows.append(("classes per client", f"median {np.median((self.labels > 0).sum(axis=1)):g}"))
            rows.append(("label skew", f"{self.label_skew:.3f} (0 identical, 1 disjoint)"))
        if is_sparse(data.x):
            rows.append(("stored entries", f"{data.x.nnz}, {data.x.nnz / len(data.y):.1f} per row"))
        else:
            rows.append(("feature shift between clients", f"{self.feature_shift:.3f} of the variance"))
        return rows

    def draw(self, path: Path) -> None:
        """Draw samples per client, labels per client and missing values."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        some_missing = [column.name for column in self.columns if column.missing][:MAX_DRAWN_COLUMNS]
        figure = Figure(figsize=(15 if some_missing else 10, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        left, right, *rest = figure.subplots(1, 3 if some_missing else 2)
        left.hist(self.sizes, bins=min(30, len(np.unique(self.sizes))), color="#4477aa", edgecolor="white")
        left.set(xlabel="samples of a client", ylabel="clients", title=f"{len(self.sizes)} clients")
        left.yaxis.get_major_locator().set_params(integer=True)
        order = np.argsort(-self.sizes, kind="stable")
        if self.labels is not None:
            shares = (self.labels / self.labels.sum(axis=1, keepdims=True))[order]
            image = right.imshow(shares, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
            figure.colorbar(image, ax=right, label="share of the client's samples")
            right.set(xlabel="class", ylabel="client, largest first", title=f"label skew {self.label_skew:.2f}")
            right.xaxis.get_major_locator().set_params(integer=True)
            _name_clients(right, self.data.clients[order].tolist())
        else:
            _, member = np.unique(self.data.client, return_inverse=True)
            right.boxplot([self.data.y[member == m] for m in order[:30]], showfliers=False)
            right.set(xlabel="client, largest first", ylabel="label", title="labels by client")
            right.set_xticks([])
        for axes in rest:
            self._draw_missing(axes, some_missing, self.data.clients[order].tolist())
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix.removeprefix(".") or "png", dpi=150)
        write_atomically(path, content.getvalue())

    def _draw_missing(self, axes: Any, columns: list[str], clients: list[str]) -> None:
        """Draw the share of missing values per client and column."""
        profile = self.profile or profile_data(self.data)
        shares = [[column.share for column in profile[client] if column.name in columns] for client in clients]
        image = axes.imshow(np.array(shares), aspect="auto", cmap="magma_r", vmin=0, vmax=1, interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, label="share of missing values")
        axes.set(ylabel="client, largest first", title="missing values")
        _name_clients(axes, clients)
        axes.set_xticks(range(len(columns)), [shown(name, 20) for name in columns], rotation=90, fontsize=7)


def _name_clients(axes: Any, names: list[str]) -> None:
    """Label the y axis with client names if there are few clients."""
    if len(names) <= MAX_NAMED_CLIENTS:
        axes.set_yticks(range(len(names)), [shown(name, 20) for name in names])
    else:
        axes.yaxis.get_major_locator().set_params(integer=True)


def _between_client_share(values: Array, data: FederatedData) -> float:
    """Return 1 - (within-client variance) / (total variance), summed over the columns."""
    clients = FederatedData(data.source, values, data.y, data.client).as_clients("float64")
    with np.errstate(over="ignore", invalid="ignore"):  # NaN for very large values
        total = aggregated_moments(clients).deviations.sum()
        within = sum(Moments.of(clients.client(m).x).deviations.sum() for m in range(clients.clients))
        return float(1 - within / total) if total > 0 else 0.0
