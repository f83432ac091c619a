"""What a federated data set is like: its size, its clients, and how much they differ."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.data.format import FederatedData, shown
from fco_cli.data.moments import Moments, aggregated_moments
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.profile import Column, Profile, of_data, overall
from fco_cli.data.sparse import is_sparse
from fco_cli.files import write_atomically
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import MAX_CLASSES

MOST_DRAWN = 60  # columns with missing values
MOST_NAMED = 20  # clients
FEW_CLASSES = 100  # more different labels than this are taken for a regression's


@dataclass(frozen=True)
class Description:
    """Numbers about a data set, each computed when asked for."""

    data: FederatedData
    profile: Profile | None = None  # of the table before it was checked

    @cached_property
    def columns(self) -> list[Column]:
        """All clients together."""
        return overall(self.profile or of_data(self.data))

    @cached_property
    def sizes(self) -> Array:
        """Samples per client."""
        return np.unique(self.data.client, return_counts=True)[1]

    @cached_property
    def labels(self) -> Array | None:
        """How many samples of every class each client has [M, C]; none for a regression."""
        y = self.data.y
        if (y < 0).any() or (y >= MAX_CLASSES).any() or (y != np.floor(y)).any() or len(np.unique(y)) > FEW_CLASSES:
            return None
        classes = max(int(y.max()) + 1, 0 if self.data.classes is None else len(self.data.classes))
        require_memory(f"{self.data.source}: a count for every client and class", 8 * len(self.data.clients) * classes)
        _, member = np.unique(self.data.client, return_inverse=True)
        counts = np.zeros((len(self.data.clients), classes), dtype=np.int64)
        np.add.at(counts, (member, y.astype(np.int64)), 1)
        return counts

    @property
    def label_skew(self) -> float:
        """Classes: the mean total variation distance of a client's labels from all labels, 0 alike to 1 disjoint.

        Regression: the share of the labels' variance that lies between the clients.
        """
        if self.labels is None:
            return _between(self.data.y[:, None], self.data)
        shares = self.labels / self.labels.sum(axis=1, keepdims=True)
        pooled = self.labels.sum(axis=0) / self.labels.sum()
        return float(np.abs(shares - pooled).sum(axis=1).mean() / 2)

    @cached_property
    def feature_shift(self) -> float:
        """The share of the features' variance that lies between the clients, 0 alike to 1 disjoint."""
        encoded = prepared(self.data, Recipe(standardize=False)).encode(self.data.raw)
        return _between(encoded, self.data)

    def rows(self) -> list[tuple[str, str]]:
        """For a table."""
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
            rows.append(("label skew", f"{self.label_skew:.3f} (0 alike, 1 disjoint)"))
        if is_sparse(data.x):
            rows.append(("stored entries", f"{data.x.nnz}, {data.x.nnz / len(data.y):.1f} of a row"))
        else:
            rows.append(("feature shift between clients", f"{self.feature_shift:.3f} of the variance"))
        return rows

    def draw(self, path: Path) -> None:
        """A picture: how many samples clients have, and which labels."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        some_missing = [column.name for column in self.columns if column.missing][:MOST_DRAWN]
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
        """The share of missing values of every client in every column that has some."""
        profile = self.profile or of_data(self.data)
        shares = [[own.share for own in profile[client] if own.name in columns] for client in clients]
        image = axes.imshow(np.array(shares), aspect="auto", cmap="magma_r", vmin=0, vmax=1, interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, label="share that is missing")
        axes.set(ylabel="client, largest first", title="missing values")
        _name_clients(axes, clients)
        axes.set_xticks(range(len(columns)), [shown(name, 20) for name in columns], rotation=90, fontsize=7)


def _name_clients(axes: Any, names: list[str]) -> None:
    """Their names, where there is room for them."""
    if len(names) <= MOST_NAMED:
        axes.set_yticks(range(len(names)), [shown(name, 20) for name in names])
    else:
        axes.yaxis.get_major_locator().set_params(integer=True)


def _between(values: Array, data: FederatedData) -> float:
    """1 - (variance within clients) / (variance of all), summed over the columns."""
    clients = FederatedData(data.source, values, data.y, data.client).as_clients("float64")
    with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest numbers: the answer is then nan
        total = aggregated_moments(clients).deviations.sum()
        within = sum(Moments.of(clients.client(m).x).deviations.sum() for m in range(clients.clients))
        return float(1 - within / total) if total > 0 else 0.0
