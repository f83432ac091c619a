"""Preparation by a formula: terms of the filled columns, with knots and moments from sums over the clients.

The exchanges, in which every client sends sums, counts or extremes of its filled training rows: the summary of the
columns (preparation.py); the range of every argument of bs, ns and poly; eight exchanges of counts for the quantiles
that are knots (statistics.py), and sums of powers for poly; the moments of the terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np

from fco_cli.data.exact_sums import column_sums, exact_sum, sum_summary
from fco_cli.data.expressions import Call, Expression, Indicator, IsMissing, Number, Term, nodes_of
from fco_cli.data.format import Features, FederatedData, check_unique, shown
from fco_cli.data.formula import KEY, Factor, Formula, coded_products
from fco_cli.data.preparation import OTHER, Categories, Preparation, Recipe, prepared
from fco_cli.data.splines import Basis, b_splines, natural_splines, orthonormal_polynomials
from fco_cli.data.statistics import MedianSearch, Summary, count_up_to_edges, merged
from fco_cli.data.subsets import select_columns
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

MAX_TERMS = 20_000
COINCIDENT = (
    2.0**-31
)  # distance of knots, relative to the range, below which the search for quantiles cannot separate them


class TermClients(Protocol):
    """Sums over the training rows of all clients of the terms of a preparation."""

    @property
    def is_exact(self) -> bool:
        """True if sums are exact (`exact_sums.py`); extremes are then not known."""

    def summary(self, preparation: Preparation) -> Summary:
        """Return the summary of the terms."""

    def counts(self, preparation: Preparation, edges: Array) -> Iterable[Array]:
        """Return the numbers of values up to each edge, by term."""


@dataclass(frozen=True)
class LocalTerms:
    """`TermClients` of rows in this process."""

    data: FederatedData
    is_exact: bool

    def _tables(self, preparation: Preparation) -> Iterator[tuple[str, Features]]:
        return ((name, terms_of(preparation, table)) for name, table in self.data.by_client())

    def summary(self, preparation: Preparation) -> Summary:
        if not self.is_exact:
            return merged(Summary.of(name, table) for name, table in self._tables(preparation))
        tables = dict(self._tables(preparation))
        return sum_summary(
            preparation.features, next(iter(tables)), len(self.data.y), {},
            lambda center, cells: exact_sum(column_sums(table, center, cells) for table in tables.values()),
        )  # fmt: skip

    def counts(self, preparation: Preparation, edges: Array) -> Iterable[Array]:
        return [count_up_to_edges(table.x, edges) for _, table in self._tables(preparation)]


def terms_of(preparation: Preparation, table: Features) -> Features:
    """Return a table of the terms of a preparation."""
    return Features(table.source, preparation.encode(table), preparation.features, {})


def prepared_by_formula(data: FederatedData, formula: Formula, recipe: Recipe, exact: bool = False) -> Preparation:
    """Compute the preparation of a formula in one process, one client at a time."""
    data = select_columns(data, formula.columns, KEY)
    base = prepared(data, replace(recipe, standardize=False), exact)
    return with_terms(base, formula, LocalTerms(data, exact), recipe.standardize)


def with_terms(base: Preparation, formula: Formula, clients: TermClients, standardize: bool) -> Preparation:
    """Return the preparation of the terms of a formula, given that of its columns."""
    _check_types(formula, base)
    terms = expand(formula, base, _fit_bases(formula, base, clients))
    check_unique("the formula", "terms", [term.name for term in terms])
    preparation = replace(base, terms=terms, mean=[], scale=[])
    moments = clients.summary(preparation).moments
    if not np.isfinite([moments.mean, moments.deviations]).all():
        raise UserError(f"{KEY}: the moments of the terms overflow; change the units of the columns")
    constant = [term.name for term, is_constant in zip(terms, moments.constant, strict=True) if is_constant]
    mean, scale = (moments.mean.tolist(), moments.scale.tolist()) if standardize else ([], [])
    return replace(preparation, mean=mean, scale=scale, constant=constant)


def _check_types(formula: Formula, base: Preparation) -> None:
    """Raise UserError for functions of categories, and for C(...) of numbers."""
    for factor in (factor for term in formula.terms for factor in term):
        columns = {node.column for node in nodes_of(factor.argument) if hasattr(node, "column")}
        texts = sorted(columns & base.categories.keys())
        if texts and factor.column is None:
            raise UserError(f"{KEY}: {factor.text}: column {shown(texts[0])!r} holds categories, must hold numbers")
        if factor.is_category and not texts:
            raise UserError(
                f"{KEY}: {factor.text}: the column holds numbers; declare it in task.categorical of task=custom"
            )


def expand(formula: Formula, base: Preparation, bases: dict[Factor, Basis]) -> list[Term]:
    """Return the terms of a formula, each a product of expressions."""
    terms = list[Term]()
    for factors, products in coded_products(formula.terms, set(base.categories)):
        group = ":".join(factor.text for factor in factors)
        for coding in products:
            parts = [
                _expressions(factor, base, bases.get(factor), coding.get(factor))
                for factor in factors
                if factor.column not in base.categories or factor in coding
            ]
            if len(terms) + np.prod([float(len(part)) for part in parts]) > MAX_TERMS:
                raise UserError(f"{KEY}: got {shown(formula.text)!r}, which has more than {MAX_TERMS} terms")
            for own in product(*parts):
                terms.append(Term(":".join(name for name, _ in own), tuple(one for _, one in own), group))
    terms += [Term(f"{column} is missing", (IsMissing(column),), column) for column in base.flagged]
    if not terms:
        raise UserError(f"{KEY}: got {shown(formula.text)!r}, but all of its columns are constant")
    return terms


def _expressions(
    factor: Factor, base: Preparation, basis: Basis | None, all_categories: bool | None
) -> list[tuple[str, Expression]]:
    """Return the names and expressions of a factor: indicators, functions of a basis, or one expression."""
    if basis is not None:
        return [(f"{factor.text}[{k}]", own) for k, own in enumerate(basis.of(factor.argument), 1)]
    if (column := factor.column) is None or column not in base.categories:
        return [(factor.text, factor.argument)]
    names = base.categories[column].names
    left_out = None if all_categories else reference(base.categories[column])
    return [(f"{column}={name}", Indicator(column, name)) for name in names if name != left_out]


def reference(encoding: Categories) -> str:
    """Return the reference category: the first one that is not `other`, or the first of two."""
    names = encoding.names
    return names[0] if len(names) <= 2 else next(name for name in names if name != OTHER)


@dataclass(frozen=True)
class _Range:
    """Number, smallest and largest value of an argument over the rows of all clients."""

    count: int
    low: float
    high: float


def _fit_bases(formula: Formula, base: Preparation, clients: TermClients) -> dict[Factor, Basis]:
    """Return the bases of all factors that have one, with one exchange for all ranges and eight for all quantiles."""
    factors = list(dict.fromkeys(factor for term in formula.terms for factor in term if factor.basis))
    if not factors:
        return {}
    arguments = replace(base, terms=[Term(factor.text, (factor.argument,)) for factor in factors])
    if clients.is_exact:
        _check_bounds(factors)
    total = clients.summary(arguments)
    ranges = {
        factor: _Range(total.rows, *_bounds(factor, float(total.low[k]), float(total.high[k])))
        for k, factor in enumerate(factors)
    }
    extremes = ranges
    if not clients.is_exact:
        extremes = {
            one: _Range(total.rows, *map(float, (total.low[k], total.high[k]))) for k, one in enumerate(factors)
        }
    knots = _quantile_knots(factors, extremes, base, clients)
    bases = {}
    for factor in factors:
        own = ranges[factor]
        if factor.basis == "poly":
            bases[factor] = _polynomials(factor, own, base, clients)
            continue
        inner = _checked_knots(factor, knots[factor], own)
        is_bs = factor.basis == "bs"
        bases[factor] = (
            b_splines(inner, own.low, own.high, _degree(factor)) if is_bs else natural_splines(inner, own.low, own.high)
        )
    return bases


def _check_bounds(factors: Sequence[Factor]) -> None:
    """Raise UserError for bases that need extremes, which exact sums do not have."""
    for factor in factors:
        if not {"lower_bound", "upper_bound"} <= dict(factor.options).keys():
            raise UserError(
                f"{KEY}: {factor.text}: extremes are not known with masks; use bs(column, ..., lower_bound=..., "
                "upper_bound=...) with public bounds"
            )


def _bounds(factor: Factor, low: float, high: float) -> tuple[float, float]:
    options = dict(factor.options)
    low, high = float(options.get("lower_bound", low)), float(options.get("upper_bound", high))
    if not low < high:
        raise UserError(f"{KEY}: {factor.text}: all values are {low:g}; it must have a lower and a larger upper bound")
    return low, high


def _degree(factor: Factor) -> int:
    return int(dict(factor.options).get("degree", 3))


def _quantile_knots(
    factors: list[Factor], ranges: dict[Factor, _Range], base: Preparation, clients: TermClients
) -> dict[Factor, Array]:
    """Return the inner knots: given ones, or quantiles at equal distances from the counts of the clients."""
    knots, places, ranks = dict[Factor, Array](), list[Factor](), list[int]()
    for factor in factors:
        options = dict(factor.options)
        knots[factor] = np.array(options.get("knots", ()), dtype=float)
        if "df" in options:
            count = options["df"] - (_degree(factor) if factor.basis == "bs" else 1)
            places += [factor] * count
            ranks += [-(-ranges[factor].count * own // (count + 1)) for own in range(1, count + 1)]
    if not places:
        return knots
    arguments = replace(base, terms=[Term(f"{factor.text} {k}", (factor.argument,)) for k, factor in enumerate(places)])
    counts, low, high = (np.array([getattr(ranges[one], key) for one in places]) for key in ("count", "low", "high"))
    search = MedianSearch(counts, low, high, rank=np.array(ranks))
    while not search.finished:
        search = search.narrowed(clients.counts(arguments, search.edges))
    for factor in dict.fromkeys(places):
        knots[factor] = search.high[[one == factor for one in places]]
    return knots


def _checked_knots(factor: Factor, inner: Array, own: _Range) -> Array:
    """Return the sorted inner knots; raise UserError if they coincide or are not within the bounds."""
    inner = np.sort(inner)
    distances = np.diff([own.low, *inner, own.high])
    if not (distances > COINCIDENT * (own.high - own.low)).all():
        shown_knots = ", ".join(f"{knot:.6g}" for knot in inner)
        raise UserError(
            f"{KEY}: {factor.text}: its knots, {shown_knots}, must be different and between {own.low:.6g} and "
            f"{own.high:.6g}; lower df, or give knots"
        )
    return inner


def _polynomials(factor: Factor, own: _Range, base: Preparation, clients: TermClients) -> Basis:
    """Return orthonormal polynomials, from sums of powers over the clients."""
    degree, center, scale = _degree(factor), (own.low + own.high) / 2, (own.high - own.low) / 2
    scaled = Call("divide", (Call("subtract", (factor.argument, Number(center))), Number(scale)))
    powers = [
        Term(f"{factor.text}^{k}", (Call("power", (scaled, Number(float(k)))),)) for k in range(1, 2 * degree + 1)
    ]
    sums = np.append(1.0, clients.summary(replace(base, terms=powers)).moments.mean) * own.count
    try:
        return orthonormal_polynomials(center, scale, sums)
    except np.linalg.LinAlgError as problem:
        raise UserError(f"{KEY}: {factor.text}: the column has too few different values; lower the degree") from problem
