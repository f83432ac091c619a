"""From a table as it is to the numbers that a model sees, agreed between clients that never show a row.

Every client sends a `Summary`; the server merges them and agrees on a `Preparation`: which categories become columns,
what fills a missing value, by which mean and deviation a column is standardized. It is part of the model: the record
keeps it as plain JSON, and whoever predicts applies it to a new table.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import reduce

import msgspec
import numpy as np

from fco_cli.data.cells import category
from fco_cli.data.format import Features, FederatedData, check_different, first_row, listed, shown
from fco_cli.data.medians import MedianSearch, counts_up_to
from fco_cli.data.moments import Moments
from fco_cli.data.source import Columns
from fco_cli.data.summary import Summary, checked
from fco_cli.errors import UserError, did_you_mean, require
from fco_cli.problem.layout import Array
from fco_cli.typed_files import BadRecord, converted, parse_json

VERSION = 1
OTHER = "other"
FILLS = ("mean", "median", "refuse")


@dataclass(frozen=True)
class Recipe:
    """What all clients are told before they begin."""

    fill: str = "mean"  # of missing values: mean or median of the column; refuse: there may be none
    flag_missing: bool = False  # a column of 0 and 1 beside every one that misses values
    min_count: int = 10  # categories of fewer rows in all become "other"
    standardize: bool = True

    def __post_init__(self) -> None:
        require(self.fill in FILLS, "task.fill", self.fill, "one of " + ", ".join(FILLS))
        require(self.min_count >= 1, "task.min_count", self.min_count, "a whole number >= 1")


@dataclass(frozen=True)
class Categories:
    """Of one column: a column for each, but one for two; `other`, if there is one, comes first."""

    names: list[str]
    fill: list[float]  # their values where none is given

    @property
    def shown(self) -> slice:
        return slice(1 if len(self.names) == 2 else 0, None)

    def places(self, names: list[str]) -> Array:
        """Where these names stand; unknown ones are `other` or, where there is none, missing (-1)."""
        known = {name: place for place, name in enumerate(self.names)}
        rest = 0 if self.names[:1] == [OTHER] else -1
        return np.array([known.get(name, rest) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Preparation:
    """The agreement."""

    columns: list[str]  # of a table
    fill: list[float]  # by column; of one with categories: 0
    categories: dict[str, Categories]
    flagged: list[str]  # columns with a second one that says what is missing
    mean: list[float] = field(default_factory=list)  # by feature; none: not standardized
    scale: list[float] = field(default_factory=list)
    constant: list[str] = field(default_factory=list)  # features that are the same in all rows, and so tell nothing
    table: Columns = field(default_factory=Columns)  # how a new table is to be read

    @property
    def features(self) -> list[str]:
        """The names of what a model sees."""
        names, flagged = [], set(self.flagged)
        for column in self.columns:
            own = self.categories.get(column)
            names += [column] if own is None else [f"{column}={name}" for name in own.names[own.shown]]
            names += [f"{column} is missing"] if column in flagged else []
        return names

    def encode(self, table: Features) -> Array:
        """Numbers in the units of the table [N, D]: filled, categories as 0 and 1. Where nothing is to do: x itself."""
        x = _in_order(table, self.columns)
        levels = {table.names[k]: names for k, names in table.levels.items()}
        if texts := sorted(levels.keys() - self.categories.keys()):
            raise UserError(
                f"{table.source}: column {shown(texts[0])!r} holds texts; the model has learnt from numbers"
            )
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

    def apply(self, table: Features) -> Array:
        """What the model has learnt from: encoded and standardized."""
        x = self.encode(table)
        if not self.mean:
            return x
        x = x - np.array(self.mean)
        x /= np.array(self.scale)
        return x

    def as_json(self) -> str:
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def of_json(cls, text: str | bytes, source: str) -> Preparation:
        """Return the preparation that `as_json` has written; raise UserError, which names the source, if it is none."""
        try:
            plain = parse_json(text.encode() if isinstance(text, str) else text, "preparation.json")
            version = converted(plain, _Versioned, "preparation.json").version
            if version != VERSION:
                raise BadRecord(f"preparation.json: version is {version}, must be {VERSION}: other software wrote it")
            made = converted(plain, cls, "preparation.json")
            if fault := made._inconsistency():
                raise BadRecord(f"preparation.json: {fault}")
            return made
        except BadRecord as problem:
            raise UserError(f"{source}: {problem}") from problem

    def _inconsistency(self) -> str | None:
        """Return which lists do not fit each other, if any."""
        columns, features = set(self.columns), self.features
        categories = self.categories.values()
        if not len(columns) == len(self.columns) == len(self.fill):
            return "columns must be distinct, with a number of fill for each"
        if not columns >= self.categories.keys() | set(self.flagged):
            return "categories and flagged must name columns"
        if any(not len(set(own.names)) == len(own.names) == len(own.fill) for own in categories):
            return "names of categories must be distinct, with a number of fill for each"
        if len(set(features)) < len(features):
            return "features must be distinct"
        if len(self.mean) != len(self.scale) or len(self.mean) not in (0, len(features)):
            return f"mean and scale must have {len(features)} numbers each, or none"
        return None if all(scale > 0 for scale in self.scale) else "scale must be positive"


class _Versioned(msgspec.Struct):
    """The key that tells which schema a preparation has."""

    version: int


def _in_order(table: Features, columns: list[str]) -> Array:
    """Its columns in the order that was agreed on."""
    if table.names == columns:
        return table.x
    place, known = {name: k for k, name in enumerate(table.names)}, set(columns)
    lacking = [name for name in columns if name not in place]
    extra = [name for name in table.names if name not in known]
    if lacking or extra:
        near = did_you_mean(lacking[0], extra) if lacking else ""
        odd = [f"{what} {listed(names)}" for what, names in (("it lacks", lacking), ("unknown are", extra)) if names]
        raise UserError(f"{table.source}: its columns are not those of the model: {'; '.join(odd)}{near}")
    return table.x[:, [place[name] for name in columns]]


def _filled(x: Array, fill: Array) -> Array:
    return x if first_row(np.isnan, x) is None else np.where(np.isnan(x), fill, x)


def _indicators(codes: Array, levels: list[str] | None, own: Categories) -> Array:
    """0 and 1 [N, shown], from places among `levels`; without them from categories that are numbers."""
    present = ~np.isnan(codes)
    if levels is None:
        values, which = np.unique(codes[present], return_inverse=True)
        levels = [category(value) for value in values]
    else:
        which = codes[present].astype(np.int64)
    places = np.full(len(codes), -1)
    places[present] = own.places(levels)[which]
    rows = np.append(np.eye(len(own.names)), [own.fill], axis=0)  # the last one, -1: missing
    return rows[places][:, own.shown]


def agree(total: Summary, recipe: Recipe, medians: Array | None = None) -> Preparation:
    """The server's side, from what all clients have sent; `medians` [d] where they fill."""
    missing = total.rows - total.present
    if recipe.standardize or missing.any():
        _check_finite(total)
    if recipe.fill == "refuse" and missing.any():
        column = total.columns[int(np.argmax(missing > 0))]
        raise UserError(f"column {shown(column)!r}: {int(missing.max())} values are missing, and task.fill is refuse")
    fill = total.moments.mean if medians is None else medians
    categories = {column: _agreed(counts, recipe) for column, counts in sorted(total.categories.items())}
    flagged = [c for c, lost in zip(total.columns, missing, strict=True) if lost] if recipe.flag_missing else []
    fill = np.where((total.moments.count > 0) & np.isfinite(fill), fill, 0.0)
    made = Preparation(total.columns, fill.tolist(), categories, flagged)
    check_different("the prepared table", "columns", made.features)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = _moments(total, made)
    constant = [name for name, is_one in zip(made.features, moments.constant, strict=True) if is_one]
    if not recipe.standardize:
        return Preparation(made.columns, made.fill, categories, flagged, constant=constant)
    mean, scale = moments.mean.tolist(), moments.scale.tolist()
    return Preparation(made.columns, made.fill, categories, flagged, mean, scale, constant)


def _agreed(counts: dict[str, int], recipe: Recipe) -> Categories:
    kept = sorted(name for name, count in counts.items() if count >= recipe.min_count and name != OTHER)
    rest = sum(counts.values()) - sum(counts[name] for name in kept)
    names, sizes = [OTHER] * (rest > 0) + kept, np.array([rest] * (rest > 0) + [counts[name] for name in kept])
    if recipe.fill == "median":
        fill = sizes == sizes.max(initial=0)
        fill = (fill & (np.cumsum(fill) == 1)).astype(float)  # the first of the most frequent
    else:
        fill = sizes / max(sizes.sum(), 1)
    return Categories(names, fill.tolist())


def _moments(total: Summary, made: Preparation) -> Moments:
    """Of the features over all rows, as they will be once they are encoded: no client is asked again."""
    missing = total.rows - total.present
    numbers = total.moments.merge(Moments.of_equal(missing, np.array(made.fill)))
    if not made.categories and not made.flagged:
        return numbers
    parts, flagged = [], set(made.flagged)
    for k, column in enumerate(made.columns):
        if column in made.categories:
            parts.append(_indicator_moments(total.categories[column], made.categories[column], missing[k]))
        else:
            parts.append(np.array([[numbers.mean[k]], [numbers.deviations[k]]]))
        if column in flagged:
            share = missing[k] / total.rows
            parts.append(np.array([[share], [missing[k] * (1 - share)]]))
    mean, deviations = np.concatenate(parts, axis=1)
    return Moments(np.full(len(mean), total.rows), mean, deviations)


def _indicator_moments(counts: dict[str, int], own: Categories, missing: int) -> Array:
    """The means and deviations of a column's 0s and 1s: [2, shown]."""
    sizes = np.bincount(own.places(list(counts)), list(counts.values()), len(own.names))[own.shown]
    share, fill = sizes / max(sum(counts.values()), 1), np.array(own.fill)[own.shown]
    given = Moments(np.full(len(share), sum(counts.values())), share, sizes * (1 - share))
    filled = given.merge(Moments.of_equal(np.full(len(share), missing), fill))
    return np.array([filled.mean, filled.deviations])


def _check_finite(total: Summary) -> None:
    moments = total.moments
    finite = np.isfinite(moments.mean) & np.isfinite(moments.scale)
    if not finite.all():
        column = total.columns[int(np.argmin(finite))]
        raise UserError(
            f"column {shown(column)!r}: its values are too large to be standardized; give it another unit, or leave it "
            "out (drop)"
        )


def median_search(total: Summary) -> MedianSearch:
    """Where the search begins; columns without numbers are searched at 0."""
    some = total.moments.count > 0
    return MedianSearch(total.moments.count, np.where(some, total.low, 0.0), np.where(some, total.high, 0.0))


def prepared(data: FederatedData, recipe: Recipe) -> Preparation:
    """The whole exchange within one process, a client at a time."""
    total = checked(reduce(Summary.merge, (Summary.of(name, table) for name, table in data.by_client())))
    if recipe.fill != "median":
        return agree(total, recipe)
    search = median_search(total)
    while not search.finished:
        edges = search.edges
        search = search.narrowed(counts_up_to(table.x, edges) for _, table in data.by_client())
    return agree(total, recipe, search.high)
