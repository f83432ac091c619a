"""Preparation by declared ranges: no statistics of rows are needed, or one noisy release of them.

`task.ranges` is public knowledge: a range [low, high] for every column of numbers, a list of categories for every other
column. Features are scaled by the centers and half-widths of their ranges, so that nothing is computed from rows. A
noisy release of moments can replace them: every row contributes its features, clipped to [-1, 1], and their squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fco_cli.data.format import Features, FederatedData, format_list
from fco_cli.data.preparation import Categories, Preparation
from fco_cli.errors import UserError, require
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import COLUMNS, generator

DEFAULT = "default"  # key of the range of all columns that are not named


def check_ranges(ranges: Any) -> None:
    """Raise UserError unless `ranges` is None or a mapping from columns to ranges of numbers or lists of categories."""
    allowed = "null or a mapping such as {age: [0, 100], sex: [f, m], default: [0, 1]}"
    require(ranges is None or (isinstance(ranges, dict) and bool(ranges)), "task.ranges", ranges, allowed)
    for column, declared in (ranges or {}).items():
        is_valid = isinstance(declared, list) and (_is_range(declared) or _is_categories(declared))
        allowed = "[low, high] with low < high, or a list of at least two distinct texts"
        require(is_valid, f"task.ranges.{column}", declared, allowed)


def _is_range(declared: list[Any]) -> bool:
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in declared) or len(declared) != 2:
        return False
    low, high = map(float, declared)
    return -1e300 < low < high < 1e300


def _is_categories(declared: list[Any]) -> bool:
    return len(declared) >= 2 and all(isinstance(one, str) for one in declared) and len(set(declared)) == len(declared)


def declared_preparation(columns: list[str], ranges: dict[str, Any], standardize: bool) -> Preparation:
    """Return the preparation of a table with these columns: missing values become the center of their range."""
    if missing := [column for column in columns if column not in ranges and DEFAULT not in ranges]:
        raise UserError(f"task.ranges: no range of {format_list(missing)}; add them, or the key {DEFAULT}")
    unknown = [column for column in ranges if column not in columns and column != DEFAULT]
    if unknown:
        raise UserError(f"task.ranges: no such column: {format_list(unknown)}; columns are {format_list(columns)}")
    declared: list[list[Any]] = [ranges[column if column in ranges else DEFAULT] for column in columns]
    categories = {
        column: Categories(list(names), [1 / len(names)] * len(names))
        for column, names in zip(columns, declared, strict=True)
        if isinstance(names[0], str)
    }
    bounds = [[0.0, 0.0] if column in categories else one for column, one in zip(columns, declared, strict=True)]
    preparation = Preparation(columns, [(low + high) / 2 for low, high in bounds], categories, [])
    if not standardize:
        return preparation
    mean, scale = list[float](), list[float]()
    for column, (low, high) in zip(columns, bounds, strict=True):
        encoding = categories.get(column)
        indicators = 0 if encoding is None else len(encoding.names[encoding.indicators])
        mean += [0.5] * indicators if encoding else [(low + high) / 2]
        scale += [0.5] * indicators if encoding else [(high - low) / 2]
    return replace(preparation, mean=mean, scale=scale)


def clipped_sums(table: Features, preparation: Preparation) -> Array:
    """Return the sums over rows of the scaled features, clipped to [-1, 1], and of their squares: [2, D]."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.clip(np.nan_to_num(preparation.apply(table)), -1, 1)
    return np.stack([x.sum(axis=0), (x**2).sum(axis=0)])


def largest_norm(features: int) -> float:
    """Return half of the largest change of `clipped_sums` by the values of one row: that of (x, x^2 - 1/2)."""
    return math.sqrt(1.25 * features)


def with_moments(preparation: Preparation, sums: Iterable[Array], rows: int, deviation: float) -> Preparation:
    """Return the preparation with the mean and scale of noisy `clipped_sums`, one per client.

    `deviation` is that of the noise in every sum; variances below that of their total, per row, are raised to it.
    """
    each = list(sums)
    first, second = np.sum(each, axis=0) / rows
    mean = np.clip(first, -1, 1)
    variance = np.clip(second - mean**2, min(1.0, deviation * math.sqrt(len(each)) / rows), 1)
    center, half = np.array(preparation.mean), np.array(preparation.scale)
    return replace(preparation, mean=(center + half * mean).tolist(), scale=(half * np.sqrt(variance)).tolist())


def simulated_preparation(
    rows: FederatedData, ranges: dict[str, Any], standardize: bool, noise: float | None, seed: int
) -> Preparation:
    """Return the preparation by declared ranges, with noisy moments if requested: every client adds noise."""
    preparation = declared_preparation(rows.feature_names, ranges, standardize)
    if noise is None:
        return preparation
    deviation, sums = noise * largest_norm(len(preparation.features)), []
    for client, (_, table) in enumerate(rows.by_client()):
        exact = clipped_sums(table, preparation)
        sums.append(exact + deviation * generator(seed, COLUMNS, client).standard_normal(exact.shape))
    return with_moments(preparation, sums, len(rows.y), deviation)
