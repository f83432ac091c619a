"""Federated statistics of columns: moments, medians and category counts, which clients send in place of rows.

The median search takes eight exchanges. In each one the clients count their values below given bin edges, which narrows
the interval of every median to a sixteenth; in the end its width is (largest - smallest) / 2^32. Counts are integers:
the result does not depend on the order of the clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from fco_cli.data.format import Features, format_list, shown
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array

MEDIAN_BINS, EXCHANGES = 16, 8  # of the median search
MAX_CATEGORIES = 1000  # of one column


@dataclass(frozen=True)
class Moments:
    """Count [d], mean [d] and sum of squared deviations from the mean [d] of the values in each column."""

    count: Array
    mean: Array
    deviations: Array

    @classmethod
    def of(cls, x: Array) -> Moments:
        """Compute the moments of the rows of one client; NaN is a missing value."""
        mean = x.mean(axis=0, dtype=float)
        if not np.isnan(mean).any():
            return cls(np.full(x.shape[1], len(x)), mean, ((x - mean) ** 2).sum(axis=0))
        present = ~np.isnan(x)
        count = present.sum(axis=0)
        mean = np.where(present, x, 0).sum(axis=0, dtype=float) / np.maximum(count, 1)
        return cls(count, mean, (np.where(present, x - mean, 0) ** 2).sum(axis=0))

    @classmethod
    def of_equal(cls, count: Array, value: Array) -> Moments:
        """Return the moments of `count` copies of a value."""
        return cls(count, value, np.zeros(len(value)))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of the union, by the stable update of Chan, Golub and LeVeque (1983)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / some)
        extra = difference**2 * (self.count * other.count / some)
        return Moments(count, mean, self.deviations + other.deviations + extra)

    @property
    def scale(self) -> Array:
        """Standard deviations; 1 for a column that is constant up to rounding."""
        deviation = np.sqrt(self.deviations / np.maximum(self.count, 1))
        return np.where(deviation > 1e-12 * np.abs(self.mean), deviation, 1.0)

    @property
    def constant(self) -> Array:
        """Mask of the columns that are constant up to rounding."""
        return ~(np.sqrt(self.deviations / np.maximum(self.count, 1)) > 1e-12 * np.abs(self.mean))


def aggregated_moments(data: ClientData) -> Moments:
    """Merge the moments of all clients."""
    total = Moments.of(data.client(0).x)
    for m in range(1, data.clients):
        total = total.merge(Moments.of(data.client(m).x))
    return total


@dataclass(frozen=True)
class MedianSearch:
    """Server-side state: an interval that contains the lower median, or another quantile, of every column."""

    count: Array  # [d], number of values at all clients
    low: Array  # [d]
    high: Array  # [d]
    done: int = 0  # finished exchanges
    rank: Array | None = None  # [d], of the quantiles among the sorted values, from 1; None: medians

    @property
    def finished(self) -> bool:
        return self.done == EXCHANGES

    @property
    def edges(self) -> Array:
        """Upper bin edges [d, MEDIAN_BINS]; the last one is `high`."""
        share = np.arange(1, MEDIAN_BINS + 1) / MEDIAN_BINS
        return self.low[:, None] * (1 - share) + self.high[:, None] * share

    def narrowed(self, answers: Iterable[Array]) -> MedianSearch:
        """Return the search after one more exchange, given the counts [d, MEDIAN_BINS] of every client."""
        total = sum(answers, np.zeros((len(self.low), MEDIAN_BINS), np.int64))
        edges, columns = self.edges, np.arange(len(self.low))
        reached = total >= ((self.count + 1) // 2 if self.rank is None else self.rank)[:, None]
        reached[:, -1] = True  # sites may hide small counts
        first = np.argmax(reached, axis=1)  # 0 for a column without values
        low = np.where(first > 0, edges[columns, first - 1], self.low)
        return MedianSearch(self.count, low, edges[columns, first], self.done + 1, self.rank)


def count_up_to_edges(x: Array, edges: Array) -> Array:
    """Count, on a client, the values of each column of x [N, d] that do not exceed its edges [d, MEDIAN_BINS]."""
    counts = np.zeros(edges.shape, np.int64)
    if len(x) <= len(edges):  # few rows of many columns
        for row in x:
            counts += row[:, None] <= edges  # False for NaN
        return counts
    for k, column_edges in enumerate(edges):
        values = np.sort(x[~np.isnan(x[:, k]), k])
        counts[k] = np.searchsorted(values, column_edges, side="right")
    return counts


def category_counts(table: Features) -> dict[str, dict[str, int]]:
    """Return the number of rows of each category, by categorical column; categories without rows are left out."""
    categories: dict[str, dict[str, int]] = {}
    for feature, levels in table.levels.items():
        codes = table.x[:, feature]
        counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(levels)).tolist()
        own = categories[table.names[feature]] = {}
        for name, n in zip(levels, counts, strict=True):
            if n:  # several levels may have one name: rare ones are merged at a site
                own[name] = own.get(name, 0) + n
    return categories


@dataclass(frozen=True)
class Summary:
    """Summary of the rows of one client or, after merging, of several; `client` is the first of them."""

    client: str
    rows: int
    columns: list[str]
    categories: dict[str, dict[str, int]]  # by column: number of rows of each category
    moments: Moments  # of the numbers in every column; count 0 for categorical columns
    low: Array  # [d], smallest value; infinity if there is none
    high: Array  # [d], largest value

    @classmethod
    def of(cls, client: str, table: Features) -> Summary:
        """Compute the summary of one client."""
        x, categories = table.x, category_counts(table)
        if categories:
            x = np.array(x, dtype=float)
            x[:, list(table.levels)] = np.nan
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is checked after merging
            moments = Moments.of(x)
        values = x.astype(float, copy=False)
        low, high = np.fmin.reduce(values, initial=np.inf), np.fmax.reduce(values, initial=-np.inf)
        return cls(client, len(x), table.names, categories, moments, low, high)

    def merge(self, other: Summary) -> Summary:
        """Return the summary of both; raise UserError if the columns differ."""
        if self.columns != other.columns:
            different = sorted(set(self.columns) ^ set(other.columns)) or other.columns
            problem = f"client {shown(other.client)!r}: its columns differ from those of {shown(self.client)!r}"
            raise UserError(f"{problem}: {format_list(different)}")
        categories = {
            column: dict(Counter(self.categories.get(column, {})) + Counter(other.categories.get(column, {})))
            for column in {**self.categories, **other.categories}
        }
        with np.errstate(over="ignore", invalid="ignore"):
            moments = self.moments.merge(other.moments)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Summary(self.client, self.rows + other.rows, self.columns, categories, moments, low, high)

    @property
    def present(self) -> Array:
        """Number of rows with a number or a category in each column [d]."""
        if not self.categories:
            return self.moments.count
        counts = [sum(self.categories.get(column, {}).values()) for column in self.columns]
        return self.moments.count + np.array(counts)

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON, with null for infinity."""
        arrays = {"count": self.moments.count, "mean": self.moments.mean, "deviations": self.moments.deviations}
        arrays |= {"low": self.low.astype(object), "high": self.high.astype(object)}
        for name in ("low", "high"):
            arrays[name][self.moments.count == 0] = None
        fields = {"client": self.client, "rows": self.rows, "columns": self.columns, "categories": self.categories}
        return fields | {name: array.tolist() for name, array in arrays.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Summary:
        """Return the summary from the output of `plain`."""
        count = np.array(plain["count"], dtype=np.int64)
        moments = Moments(count, np.array(plain["mean"], float), np.array(plain["deviations"], float))
        low, high = (np.array(plain[name], float) for name in ("low", "high"))
        low, high = np.where(np.isnan(low), np.inf, low), np.where(np.isnan(high), -np.inf, high)
        return cls(plain["client"], plain["rows"], plain["columns"], plain["categories"], moments, low, high)


def merged(messages: Iterable[Summary]) -> Summary:
    """Merge the summaries of all clients, in the order of their names for bitwise reproducibility."""
    return check_summary(reduce(Summary.merge, sorted(messages, key=lambda message: message.client)))


def check_summary(total: Summary) -> Summary:
    """Return the summary; raise UserError for a column with both numbers and texts or with too many categories."""
    for column, counts in total.categories.items():
        if total.moments.count[total.columns.index(column)]:
            raise UserError(
                f"column {shown(column)!r}: holds numbers at some clients and texts at others: declare it as "
                "categorical, or use one type at all clients"
            )
        if len(counts) > MAX_CATEGORIES:
            some = format_list(sorted(counts), 3)
            raise UserError(
                f"column {shown(column)!r}: has {len(counts)} categories ({some}), at most {MAX_CATEGORIES} are "
                "allowed: drop it (drop)"
            )
    return total
