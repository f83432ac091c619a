"""Federated preparation of tables: one-hot encoding, imputation and standardization without sharing rows.

Every client sends a `Summary`. The server merges the summaries and computes a `Preparation`: the encoded categories,
the fill values of missing values, and the mean and standard deviation of each feature. The preparation is part of the
model: it is stored in the record as JSON and applied to new tables for prediction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import reduce

import msgspec
import numpy as np

from fco_cli.data.exact_sums import category_names, column_sums, exact_sum, sum_summary
from fco_cli.data.expressions import Column, Expression, Term, evaluate_term, inconsistency, is_logarithm, nodes_of
from fco_cli.data.format import Features, FederatedData, check_unique, first_row, format_list, shown
from fco_cli.data.readers.cells import category_name
from fco_cli.data.readers.source import Columns
from fco_cli.data.statistics import MedianSearch, Moments, Summary, check_summary, count_up_to_edges
from fco_cli.errors import UserError, did_you_mean, require
from fco_cli.problem.layout import Array
from fco_cli.typed_files import BadRecord, converted, parse_json

VERSION = 1
OTHER = "other"
FILLS = ("mean", "median", "refuse")


@dataclass(frozen=True)
class Recipe:
    """Settings of a preparation."""

    fill: str = "mean"  # of missing values: mean or median of the column; refuse: raise an error
    flag_missing: bool = False  # add an indicator column for every column with missing values
    min_count: int = 10  # rarer categories are merged into "other"
    standardize: bool = True

    def __post_init__(self) -> None:
        require(self.fill in FILLS, "task.fill", self.fill, "one of " + ", ".join(FILLS))
        require(self.min_count >= 1, "task.min_count", self.min_count, "a whole number >= 1")


@dataclass(frozen=True)
class Categories:
    """Categories of one column: one indicator each, a single one for two categories; `other` comes first."""

    names: list[str]
    fill: list[float]  # values of the indicators where the category is missing

    @property
    def indicators(self) -> slice:
        """Categories that have an indicator column."""
        return slice(1 if len(self.names) == 2 else 0, None)

    def indices(self, names: list[str]) -> Array:
        """Return the indices of names; unknown names are `other` or, if there is no such category, missing (-1)."""
        known = {name: index for index, name in enumerate(self.names)}
        default = 0 if self.names[:1] == [OTHER] else -1
        return np.array([known.get(name, default) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Preparation:
    """Fitted preparation of a table: encoding, fill values and standardization."""

    columns: list[str]  # of the table
    fill: list[float]  # by column; 0 for categorical columns
    categories: dict[str, Categories]
    flagged: list[str]  # columns with a missing-value indicator
    mean: list[float] = field(default_factory=list)  # by feature; empty: not standardized
    scale: list[float] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)  # features with the same value in all rows
    table: Columns = field(default_factory=Columns)  # roles of the columns in a new table
    terms: list[Term] = field(default_factory=list)  # features of a formula; empty: the columns are the features
    offset: Expression | None = None  # added to the scores: a column, or the logarithm of one

    @property
    def features(self) -> list[str]:
        """Names of the prepared features."""
        if self.terms:
            return [term.name for term in self.terms]
        if not self.categories and not self.flagged:
            return list(self.columns)
        names, flagged = [], set(self.flagged)
        for column in self.columns:
            encoding = self.categories.get(column)
            names += (
                [column] if encoding is None else [f"{column}={name}" for name in encoding.names[encoding.indicators]]
            )
            names += [f"{column} is missing"] if column in flagged else []
        return names

    def encode(self, table: Features) -> Array:
        """Return the features [N, D] in original units: filled and one-hot encoded; x itself if nothing changes."""
        if self.terms:
            return self._encode_terms(table)
        x, levels = self.columns_of(table)
        if not self.categories and not self.flagged:
            return _filled(x, np.array(self.fill))
        parts, flagged = [], set(self.flagged)
        for k, column in enumerate(self.columns):
            values = np.asarray(x[:, k], dtype=float)
            if column in self.categories:
                parts.append(_indicators(values, levels.get(column), self.categories[column]))
            else:
                parts.append(_filled(values[:, None], np.array(self.fill[k : k + 1])))
            if column in flagged:
                parts.append(np.isnan(values)[:, None].astype(float))
        return np.concatenate(parts, axis=1)

    def columns_of(self, table: Features) -> tuple[Array, dict[str, list[str]]]:
        """Return the columns of a table in the order of the model, and the categories of its texts by column.

        A formula needs only its own columns.
        """
        others = table.names if self.terms else self._offset_columns
        x = _reorder_columns(table, self.columns, others)
        levels = {table.names[k]: names for k, names in table.levels.items() if table.names[k] in self.columns}
        if text_columns := sorted(levels.keys() - self.categories.keys()):
            raise UserError(
                f"{table.source}: column {shown(text_columns[0])!r} holds texts; the model was trained on numbers"
            )
        return x, levels

    @property
    def _offset_columns(self) -> list[str]:
        return (
            [] if self.offset is None else [node.column for node in nodes_of(self.offset) if isinstance(node, Column)]
        )

    def _encode_terms(self, table: Features) -> Array:
        """Return the terms of a formula [N, D]; raise UserError if one is not finite."""
        values = TableValues(self, table)
        x = np.empty((values.rows, len(self.terms)))
        for k, term in enumerate(self.terms):
            x[:, k] = evaluate_term(term, values, values.rows)
        if not (finite := np.isfinite(x)).all():
            row, k = np.argwhere(~finite)[0]
            raise UserError(
                f"{table.source}: row {row}: {shown(self.terms[k].name)!r} of the formula is not finite, such as the "
                "logarithm of 0; correct the value, or change the formula"
            )
        return x

    def apply(self, table: Features) -> Array:
        """Return the encoded and standardized features [N, D]."""
        x = self.encode(table)
        if not self.mean:
            return x
        x = x - np.array(self.mean)
        x /= np.array(self.scale)
        return x

    def as_json(self) -> str:
        plain = msgspec.to_builtins(self)
        plain = {key: value for key, value in plain.items() if key not in ("terms", "offset") or value}
        return json.dumps({"version": VERSION, **plain}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def of_json(cls, text: str | bytes, source: str) -> Preparation:
        """Return the preparation from the output of `as_json`; raise UserError if it is invalid."""
        try:
            plain = parse_json(text.encode() if isinstance(text, str) else text, "preparation.json")
            version = converted(plain, _Versioned, "preparation.json").version
            if version != VERSION:
                raise BadRecord(f"preparation.json: version is {version}, must be {VERSION}: from another release")
            preparation = converted(plain, cls, "preparation.json")
            if fault := preparation._inconsistency():
                raise BadRecord(f"preparation.json: {fault}")
            return preparation
        except BadRecord as problem:
            raise UserError(f"{source}: {problem}") from problem

    def _inconsistency(self) -> str | None:
        """Return a description of inconsistent fields, or None."""
        columns, features = set(self.columns), self.features
        categories = self.categories.values()
        if not len(columns) == len(self.columns) == len(self.fill):
            return "columns must be distinct, with one fill value for each"
        if not columns >= self.categories.keys() | set(self.flagged):
            return "categories and flagged must name columns"
        if any(not len(set(encoding.names)) == len(encoding.names) == len(encoding.fill) for encoding in categories):
            return "category names must be distinct, with one fill value for each"
        if len(set(features)) < len(features):
            return "features must be distinct"
        numbers = columns - self.categories.keys()
        names = {column: encoding.names for column, encoding in self.categories.items()}
        for factor in (factor for term in self.terms for factor in term.factors):
            if fault := inconsistency(factor, numbers, names):
                return f"terms: {fault}"
        if not isinstance(self.offset, Column | None) and not is_logarithm(self.offset):
            return "offset: must be a column, or the logarithm of one"
        if len(self.mean) != len(self.scale) or len(self.mean) not in (0, len(features)):
            return f"mean and scale must have {len(features)} numbers each, or none"
        return None if all(scale > 0 for scale in self.scale) else "scale must be positive"


class TableValues:
    """Filled values of the columns of a table, for the expressions of a formula."""

    def __init__(self, preparation: Preparation, table: Features) -> None:
        self.preparation, self.rows = preparation, len(table.x)
        self.x, self.levels = preparation.columns_of(table)
        self.encoded: dict[str, Array] = {}  # indicators of all categories, by column

    def _column(self, column: str) -> tuple[int, Array]:
        place = self.preparation.columns.index(column)
        return place, np.asarray(self.x[:, place], dtype=float)

    def number(self, column: str) -> Array:
        """Return a column of numbers [N], filled."""
        place, values = self._column(column)
        return _filled(values[:, None], np.array(self.preparation.fill[place : place + 1]))[:, 0]

    def indicator(self, column: str, category: str) -> Array:
        """Return the indicator of a category [N], filled."""
        encoding = self.preparation.categories[column]
        if column not in self.encoded:
            codes = self._column(column)[1]
            self.encoded[column] = _indicators(codes, self.levels.get(column), encoding, slice(None))
        return self.encoded[column][:, encoding.names.index(category)]

    def is_missing(self, column: str) -> Array:
        """Return 1 for missing values and 0 for others [N]."""
        return np.isnan(self._column(column)[1]).astype(float)


class _Versioned(msgspec.Struct):
    """Version of the schema of preparation.json."""

    version: int


def _reorder_columns(table: Features, columns: list[str], others: list[str]) -> Array:
    """Return x with the columns in the given order; raise UserError if columns are missing or unknown.

    `others` are known columns that are not used.
    """
    if table.names == columns:
        return table.x
    index, known = {name: k for k, name in enumerate(table.names)}, {*columns, *others}
    missing = [name for name in columns if name not in index]
    extra = [name for name in table.names if name not in known]
    if missing or extra:
        hint = did_you_mean(missing[0], extra) if missing else ""
        lists = (("missing columns", missing), ("unknown columns", extra))
        differences = "; ".join(f"{what} {format_list(names)}" for what, names in lists if names)
        raise UserError(f"{table.source}: its columns are not those of the model: {differences}{hint}")
    return table.x[:, [index[name] for name in columns]]


def _filled(x: Array, fill: Array) -> Array:
    return x if first_row(np.isnan, x) is None else np.where(np.isnan(x), fill, x)


def _indicators(codes: Array, levels: list[str] | None, encoding: Categories, chosen: slice | None = None) -> Array:
    """Return the indicators [N, indicators] of codes: indices into `levels` or, without levels, numeric categories.

    `chosen` are other categories than those that have an indicator.
    """
    present = ~np.isnan(codes)
    if levels is None:
        values, which = np.unique(codes[present], return_inverse=True)
        levels = [category_name(value) for value in values]
    else:
        which = codes[present].astype(np.int64)
    indices = np.full(len(codes), -1)
    indices[present] = encoding.indices(levels)[which]
    rows = np.append(np.eye(len(encoding.names)), [encoding.fill], axis=0)  # index -1: fill values
    return rows[indices][:, encoding.indicators if chosen is None else chosen]


def agree(total: Summary, recipe: Recipe, medians: Array | None = None) -> Preparation:
    """Compute, on the server, the preparation from the merged summary; `medians` [d] are required for fill=median."""
    missing = total.rows - total.present
    if recipe.standardize or missing.any():
        _check_finite(total)
    if recipe.fill == "refuse" and missing.any():
        column = total.columns[int(np.argmax(missing > 0))]
        raise UserError(
            f"column {shown(column)!r}: {int(missing.max())} values are missing, which task.fill=refuse does not allow"
        )
    fill = total.moments.mean if medians is None else medians
    categories = {column: _select_categories(counts, recipe) for column, counts in sorted(total.categories.items())}
    flagged = [c for c, count in zip(total.columns, missing, strict=True) if count] if recipe.flag_missing else []
    fill = np.where((total.moments.count > 0) & np.isfinite(fill), fill, 0.0)
    unscaled = Preparation(total.columns, fill.tolist(), categories, flagged)
    check_unique("the prepared table", "columns", unscaled.features)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = _moments(total, unscaled)
    constant = [name for name, is_constant in zip(unscaled.features, moments.constant, strict=True) if is_constant]
    if not recipe.standardize:
        return replace(unscaled, constant=constant)
    mean, scale = moments.mean.tolist(), moments.scale.tolist()
    return replace(unscaled, mean=mean, scale=scale, constant=constant)


def _select_categories(counts: dict[str, int], recipe: Recipe) -> Categories:
    kept = sorted(name for name, count in counts.items() if count >= recipe.min_count and name != OTHER)
    rare = sum(counts.values()) - sum(counts[name] for name in kept)
    names, sizes = [OTHER] * (rare > 0) + kept, np.array([rare] * (rare > 0) + [counts[name] for name in kept])
    if recipe.fill == "median":
        fill = sizes == sizes.max(initial=0)
        fill = (fill & (np.cumsum(fill) == 1)).astype(float)  # the first of the most frequent categories
    else:
        fill = sizes / max(sizes.sum(), 1)
    return Categories(names, fill.tolist())


def _moments(total: Summary, preparation: Preparation) -> Moments:
    """Compute the moments of the encoded features over all rows from the summary alone."""
    missing = total.rows - total.present
    numbers = total.moments.merge(Moments.of_equal(missing, np.array(preparation.fill)))
    if not preparation.categories and not preparation.flagged:
        return numbers
    parts, flagged = [], set(preparation.flagged)
    for k, column in enumerate(preparation.columns):
        if column in preparation.categories:
            parts.append(_indicator_moments(total.categories[column], preparation.categories[column], missing[k]))
        else:
            parts.append(np.array([[numbers.mean[k]], [numbers.deviations[k]]]))
        if column in flagged:
            share = missing[k] / total.rows
            parts.append(np.array([[share], [missing[k] * (1 - share)]]))
    mean, deviations = np.concatenate(parts, axis=1)
    return Moments(np.full(len(mean), total.rows), mean, deviations)


def _indicator_moments(counts: dict[str, int], encoding: Categories, missing: int) -> Array:
    """Return the means and sums of squared deviations of the indicators of a column: [2, indicators]."""
    sizes = np.bincount(encoding.indices(list(counts)), list(counts.values()), len(encoding.names))[encoding.indicators]
    share, fill = sizes / max(sum(counts.values()), 1), np.array(encoding.fill)[encoding.indicators]
    known = Moments(np.full(len(share), sum(counts.values())), share, sizes * (1 - share))
    filled = known.merge(Moments.of_equal(np.full(len(share), missing), fill))
    return np.array([filled.mean, filled.deviations])


def _check_finite(total: Summary) -> None:
    moments = total.moments
    finite = np.isfinite(moments.mean) & np.isfinite(moments.scale)
    if not finite.all():
        column = total.columns[int(np.argmin(finite))]
        raise UserError(
            f"column {shown(column)!r}: its values are too large to be standardized; change its unit, or drop it (drop)"
        )


def start_median_search(total: Summary) -> MedianSearch:
    """Return the initial state of the median search; columns without finite numbers get the interval [0, 0]."""
    has_numbers = (total.moments.count > 0) & np.isfinite(total.low) & np.isfinite(total.high)
    low, high = np.where(has_numbers, total.low, 0.0), np.where(has_numbers, total.high, 0.0)
    return MedianSearch(total.moments.count, low, high)


def prepared(data: FederatedData, recipe: Recipe, exact: bool = False) -> Preparation:
    """Compute the preparation in one process, one client at a time; `exact`: from exact sums over the clients."""
    if exact:
        total = _exact_summary(data)
    else:
        total = check_summary(reduce(Summary.merge, (Summary.of(name, table) for name, table in data.by_client())))
    if recipe.fill != "median":
        return agree(total, recipe)
    search = start_median_search(total)
    while not search.finished:
        edges = search.edges
        search = search.narrowed(count_up_to_edges(table.x, edges) for _, table in data.by_client())
    return agree(total, recipe, search.high)


def _exact_summary(data: FederatedData) -> Summary:
    names = category_names(table for _, table in data.by_client())
    first = next(name for name, _ in data.by_client())
    return sum_summary(
        data.feature_names, first, len(data.y), names,
        lambda center, cells: exact_sum(column_sums(table, center, cells) for _, table in data.by_client()),
    )  # fmt: skip
