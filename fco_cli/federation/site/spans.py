"""Terms of formulas that a site has answered about, over all runs: their combinations must not single out rows.

Two terms about many rows each can differ in one row: indicators of age >= 60.1 and age >= 60.2, or smooth functions
like these. The ledger therefore stores all terms, and new ones are refused if a combination of them and of the columns
is almost 0 for all rows but one, or if two cuts of rows differ by few rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec
import numpy as np

from fco_cli.data.expressions import Call, IsMissing, Piecewise, Term, evaluate, nodes_of
from fco_cli.data.format import Features
from fco_cli.data.preparation import Categories, Preparation, TableValues
from fco_cli.federation.policy import POLICY_FILE, Policy, Refusal, plural
from fco_cli.problem.layout import Array

MAX_SHARE = 0.75  # of the part of a row's indicator outside the span of the columns, explained by terms
RESOLUTION = 1e-9  # relative, of the combinations that exact answers resolve


class KnownTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms of one preparation, in the ledger."""

    columns: list[str]
    categories: dict[str, list[str]]
    terms: list[Term]

    @classmethod
    def of(cls, preparation: Preparation) -> KnownTerms:
        names = {column: encoding.names for column, encoding in preparation.categories.items()}
        return cls(preparation.columns, names, preparation.terms)

    def values(self, table: Features) -> TableValues:
        """Return the columns of a table, filled with their means."""
        encodings = {column: Categories(names, [0.0] * len(names)) for column, names in self.categories.items()}
        places = [table.names.index(name) for name in self.columns]
        fill = [0.0 if place in table.levels else _mean(table.x[:, place]) for place in places]
        return TableValues(Preparation(self.columns, fill, encodings, [], terms=self.terms), table)


def check_combinations(known: list[KnownTerms], new: KnownTerms, table: Features, policy: Policy) -> None:
    """Raise Refusal if new terms, with known ones, single out few rows of a table."""
    names = set(table.names)
    usable = [(own, own.values(table)) for own in (*known, new) if names >= set(own.columns)]
    cuts = np.unique(np.array([cut for own, values in usable for cut in _cuts(own.terms, values)]), axis=0)
    for one, other in combinations(cuts.reshape(-1, len(table.x)), 2):
        difference = int((one != other).sum())
        difference = min(difference, len(one) - difference)
        if 0 < difference < policy.min_rows:
            raise _refusal(f"terms with cuts that differ by {plural(difference, 'row')}", policy)
    columns = columns_of(table).T
    share = _shares(columns)
    everything = np.vstack([columns, *(_finite_terms(own.terms, values) for own, values in usable)])
    left = 1 - share  # of the indicators; columns that single out a row without terms are another rule's
    if ((left > RESOLUTION) & (1 - _shares(everything) < (1 - MAX_SHARE) * left)).any():
        raise _refusal("terms with a combination that singles out one row", policy)


def _refusal(problem: str, policy: Policy) -> Refusal:
    rule = f"the site's policy allows differences of {policy.min_rows} or more ({POLICY_FILE}: min_rows)"
    return Refusal(f"{problem} requested, also in earlier requests; {rule}; change task.formula")


def _cuts(terms: list[Term], values: TableValues) -> Iterator[Array]:
    """Yield the rows [N] at one side of every break, zero of an absolute value, and indicator of missing values."""
    zero = np.zeros(values.rows)
    for node in (node for term in terms for factor in term.factors for node in nodes_of(factor)):
        if isinstance(node, IsMissing):
            yield zero > 0
            yield values.is_missing(node.column) > 0
        elif isinstance(node, Piecewise):
            argument = zero + evaluate(node.argument, values)
            yield from (argument >= one for one in node.breaks)
        elif isinstance(node, Call) and node.function == "abs":
            yield zero > 0
            yield zero + evaluate(node.arguments[0], values) >= 0


def columns_of(table: Features, flag_missing: bool = False) -> Array:
    """Return 1, the filled columns of numbers and the indicators of categories and, if flagged, missing values."""
    rows = [np.ones(len(table.x))]
    for k in range(table.x.shape[1]):
        values = np.asarray(table.x[:, k], float)
        missing = np.isnan(values)
        if k in table.levels:
            names = np.array([*table.levels[k], ""])
            of_row = names[np.where(missing, len(names) - 1, values).astype(int)]
            rows += [(of_row == name).astype(float) for name in np.unique(names[:-1])]
        else:
            rows.append(np.where(missing, _mean(values), values))
        if flag_missing and missing.any():
            rows.append(missing.astype(float))
    return np.column_stack(rows)


def _finite_terms(terms: list[Term], values: TableValues) -> Array:
    """Return the terms [T, N] that are finite for all rows."""
    products = np.ones((len(terms), values.rows))
    with np.errstate(all="ignore"):
        for own, term in zip(products, terms, strict=True):
            for factor in term.factors:
                own *= evaluate(factor, values)
    return products[np.isfinite(products).all(axis=1)]


def _shares(vectors: Array) -> Array:
    """Return the squared norms [N] of the projections of the rows' indicators onto the span of vectors [K, N]."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors[largest[:, 0] > 0] / largest[largest[:, 0] > 0]
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    _, sizes, basis = np.linalg.svd(scaled, full_matrices=False)
    return (basis[sizes > RESOLUTION * sizes[0]] ** 2).sum(axis=0)


def _mean(values: Array) -> float:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else 0.0
