"""Terms of a formula at a site: summaries and counts of the terms, and rules for what terms may be.

A term is a product of expressions of the columns, which an analyst chooses. If small cells are hidden, it must not mark
few rows: neither by equal values of all others, nor by large values of a few. Functions that are not finite everywhere
have a column as their argument, since a term that is not finite is refused, and the refusal discloses an order of
values: `log(age - 73)` would reveal that a patient is younger than 73.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fco_cli.data.expressions import Call, Column, Expression, Indicator, Number, Piecewise, Term, evaluate, nodes_of
from fco_cli.data.format import Features, shown
from fco_cli.data.preparation import Preparation, TableValues
from fco_cli.data.statistics import Summary
from fco_cli.data.terms import terms_of
from fco_cli.errors import UserError
from fco_cli.federation.message import Message
from fco_cli.federation.policy import POLICY_FILE, Refusal
from fco_cli.federation.schema import Terms
from fco_cli.federation.site.cells import effective_number
from fco_cli.federation.site.disclosure import Disclosure
from fco_cli.federation.site.preparations import check_preparation, with_own_fills
from fco_cli.federation.site.rows import Split
from fco_cli.federation.site.spans import KnownTerms, check_combinations

if TYPE_CHECKING:
    from fco_cli.federation.site.data import SiteData

MIN_SPREAD = 1e-3  # range of the values of an expression, relative to the largest
PARTIAL = ("log", "log2", "log10", "sqrt")  # functions that are not finite everywhere


class SiteTerms:
    """Terms of the training rows of `site_data`."""

    def __init__(self, site_data: SiteData) -> None:
        self.site_data = site_data

    def terms(self, request: Terms) -> Message:
        """Return the summary of the terms over the training rows of a fit."""
        table = self.table(request.terms.fit, request.terms.preparation)
        summary = Summary.of(self.site_data.name, table)
        if not np.isfinite([summary.moments.mean, summary.moments.deviations]).all():
            raise self._count_refusal("the moments of a term overflow")
        return Message("", {"summary": self.site_data.disclosure.released_summary(summary, table).plain()})

    def table(self, fit: int, text: str) -> Features:
        """Return the terms of a preparation of a fit's training rows."""
        split, disclosure = self.site_data.fit(fit).split, self.site_data.disclosure
        preparation, table = self.site_data.preparation_of(text, split.names), split.training_table()
        if not len(table.x) or not preparation.terms:
            raise Refusal("terms: the site has no training rows in this run, or the preparation has no terms")
        check_preparation(preparation, table, disclosure)
        preparation = with_own_fills(preparation, split, disclosure)
        check_terms(preparation, split, disclosure)
        return encoded(preparation, disclosure.merge_levels(table, table), disclosure)

    def _count_refusal(self, problem: str) -> Refusal:
        count_refusal(self.site_data.disclosure)
        return Refusal(f"terms: {problem}; change the units of the columns")


def encoded(preparation: Preparation, table: Features, disclosure: Disclosure) -> Features:
    """Return the terms; raise Refusal, without the row, if one is not finite, and count it."""
    try:
        return terms_of(preparation, table)
    except UserError:
        count_refusal(disclosure)
        raise Refusal("terms: a term is not finite for a row of the site; change the formula") from None


def count_refusal(disclosure: Disclosure) -> None:
    """Count a refusal that depends on values of rows like a steep model."""
    disclosure.charge(0)
    name = "steep_models"
    disclosure.ledger.charge({name: disclosure.limits[name]}, {name: 1})


def check_terms(preparation: Preparation, split: Split, disclosure: Disclosure) -> None:
    """Raise Refusal if a term could mark few training rows of the site, also with earlier ones, or test values."""
    if not disclosure.policy.hide_small_cells:
        return
    training, least = split.training_table(), disclosure.policy.min_rows
    table = disclosure.merge_levels(training, training)
    for term in preparation.terms:
        for factor in term.factors:
            _check_partial(factor, term.name)
    values = TableValues(preparation, table)
    _check_digits(preparation, values, disclosure)
    own = encoded(preparation, table, disclosure).x
    for k, term in enumerate(preparation.terms):
        counts = np.unique(own[:, k], return_counts=True)[1]
        others = int(counts.sum() - counts.max())
        if 0 < others < least:
            disclosure.policy.check_rows(others, f"a term ({shown(term.name, 60)}) with another value")
        if not _is_column(term) and others:
            limit = min([least, *(_spread_rows(values.number(name)) / 2 for name in _numbers(term))])
            if _spread_rows(own[:, k]) < limit:
                count_refusal(disclosure)
                raise Refusal(
                    f"a term ({shown(term.name, 60)}) with large values of few rows requested; the site's policy "
                    f"allows {least} or more ({POLICY_FILE}: min_rows, hide_small_cells); change task.formula"
                )
    _check_combinations(preparation, split, disclosure)


def _check_combinations(preparation: Preparation, split: Split, disclosure: Disclosure) -> None:
    """Record the terms in the ledger; raise Refusal, and count it, if they single out rows with earlier ones."""
    rows, policy = disclosure.data.take(split.parts.training).raw, disclosure.policy
    table, new = disclosure.merge_levels(rows, rows), KnownTerms.of(preparation)

    def check(known: list[KnownTerms]) -> None:
        count = len(known) + (new not in known)
        policy.check_limit("max_subsets", count, f"{count} preparations with different terms over all runs")
        check_combinations(known, new, table, policy)

    try:
        disclosure.ledger.add_terms(new, check)
    except Refusal:
        count_refusal(disclosure)
        raise


def _check_digits(preparation: Preparation, values: TableValues, disclosure: Disclosure) -> None:
    """Raise Refusal, and count it, if a part of a term varies by a small share of its values.

    Its rounding makes steps of the column, such as in `age + 1e17 - 1e17`, which differ by few rows from others.
    """
    for term in preparation.terms:
        for node in (node for factor in term.factors for node in nodes_of(factor) if isinstance(node, Call)):
            with np.errstate(all="ignore"):
                own = evaluate(node, values) + np.zeros(values.rows)
                spread, largest = np.ptp(own), np.abs(own).max()
            if np.isfinite(largest) and 0 < spread < MIN_SPREAD * largest:
                count_refusal(disclosure)
                raise Refusal(
                    f"a term ({shown(term.name, 60)}) that rounds its columns requested; the site's policy allows sums "
                    f"with numbers of their size ({POLICY_FILE}: hide_small_cells); change task.formula"
                )


def _spread_rows(values: np.ndarray) -> float:
    """Return the effective number of rows that determine the squared deviations from the median."""
    squares = (values - np.median(values)) ** 2
    largest = squares.max()
    return float(effective_number(squares[None] / largest)[0]) if largest > 0 and np.isfinite(largest) else np.inf


def _is_column(term: Term) -> bool:
    return len(term.factors) == 1 and isinstance(term.factors[0], Column | Indicator)


def _numbers(term: Term) -> list[str]:
    """Return the columns of numbers in a term."""
    nodes = [node for factor in term.factors for node in nodes_of(factor)]
    return sorted({node.column for node in nodes if isinstance(node, Column)})


def _check_partial(expression: Expression, name: str) -> None:
    """Raise Refusal unless functions that are not finite everywhere have a column, or a number, as argument."""
    for node in nodes_of(expression):
        place = _partial_argument(node) if isinstance(node, Call) else None
        if isinstance(node, Call) and place is not None and not isinstance(node.arguments[place], Column | Number):
            raise Refusal(
                f"a term ({shown(name, 60)}) with {node.function} of an expression requested; the site's policy allows "
                f"columns as arguments ({POLICY_FILE}: hide_small_cells); change task.formula"
            )
        if isinstance(node, Piecewise) and not isinstance(node.argument, Column | Call):
            raise Refusal(f"a term ({shown(name, 60)}) with a basis of another term requested; change task.formula")


def _partial_argument(call: Call) -> int | None:
    """Return the place of the argument for which a function may not be finite, None if it is finite everywhere."""
    if call.function in PARTIAL:
        return 0
    if call.function == "divide":
        return 1
    if call.function != "power":
        return None
    exponent = call.arguments[1]
    is_whole = isinstance(exponent, Number) and exponent.value >= 0 and float(exponent.value).is_integer()
    return None if is_whole else 0
