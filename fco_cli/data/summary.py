"""Summary of a client's table for the server: column names, category counts and moments, no rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from fco_cli.data.format import Features, format_list, shown
from fco_cli.data.moments import Moments
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

MAX_CATEGORIES = 1000  # of one column


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
        x = table.x
        categories = {}
        for feature, levels in table.levels.items():
            codes = x[:, feature]
            counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(levels)).tolist()
            categories[table.names[feature]] = {name: n for name, n in zip(levels, counts, strict=True) if n}
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
