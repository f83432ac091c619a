"""Expressions of the columns of a table, and terms: products of expressions that are the features of a model.

Expressions are numbers, columns of numbers, indicators of categories or of missing values, functions of expressions,
and piecewise polynomials, which represent splines. They are data: nothing in a stored model is executed as code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from fco_cli.problem.layout import Array


class Function(NamedTuple):
    """Function of numbers in expressions."""

    arguments: int
    of: Callable[..., Array]


FUNCTIONS = {
    "add": Function(2, np.add),
    "subtract": Function(2, np.subtract),
    "multiply": Function(2, np.multiply),
    "divide": Function(2, np.divide),
    "power": Function(2, np.power),
    "negative": Function(1, np.negative),
    "abs": Function(1, np.abs),
    "exp": Function(1, np.exp),
    "log": Function(1, np.log),
    "log2": Function(1, np.log2),
    "log10": Function(1, np.log10),
    "sqrt": Function(1, np.sqrt),
}


class Number(msgspec.Struct, frozen=True, tag="number"):
    """Constant."""

    value: float


class Column(msgspec.Struct, frozen=True, tag="column"):
    """Column of numbers; missing values are filled."""

    column: str


class Indicator(msgspec.Struct, frozen=True, tag="indicator"):
    """1 for rows with this category of a column, else 0; the fill value where the category is missing."""

    column: str
    category: str


class IsMissing(msgspec.Struct, frozen=True, tag="missing"):
    """1 for rows without a value in a column, else 0."""

    column: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Function of expressions."""

    function: str  # key of FUNCTIONS
    arguments: tuple[Expression, ...]


class Piecewise(msgspec.Struct, frozen=True, tag="piecewise"):
    """Piecewise polynomial of an expression.

    Piece k, of as many as there are breaks plus one, is used from break k - 1 (included) to break k. It is the
    polynomial with these coefficients, constant first, of the distance to break k - 1, or to break 0 for piece 0.
    """

    argument: Expression
    breaks: tuple[float, ...]
    coefficients: tuple[tuple[float, ...], ...]


Expression = Number | Column | Indicator | IsMissing | Call | Piecewise


class Term(msgspec.Struct, frozen=True):
    """Feature of a model: the product of its factors; `group` are the features that belong together."""

    name: str
    factors: tuple[Expression, ...]
    group: str = ""


class Values(Protocol):
    """Values of the columns of a table, by row."""

    def number(self, column: str) -> Array:
        """Return a column of numbers [N], filled."""

    def indicator(self, column: str, category: str) -> Array:
        """Return the indicator of a category [N], filled."""

    def is_missing(self, column: str) -> Array:
        """Return 1 for missing values and 0 for others [N]."""


def evaluate(expression: Expression, values: Values) -> Array:
    """Return the value of an expression for every row; invalid operations give infinity or NaN."""
    with np.errstate(all="ignore"):
        return _evaluate(expression, values)


def _evaluate(expression: Expression, values: Values) -> Array:
    match expression:
        case Number(value):
            return np.array(value)
        case Column(column):
            return values.number(column)
        case Indicator(column, category):
            return values.indicator(column, category)
        case IsMissing(column):
            return values.is_missing(column)
        case Call(function, arguments):
            return FUNCTIONS[function].of(*(_evaluate(one, values) for one in arguments))
        case Piecewise(argument, breaks, coefficients):
            return piecewise(_evaluate(argument, values), np.array(breaks), np.array(coefficients))


def piecewise(x: Array, breaks: Array, coefficients: Array) -> Array:
    """Return the values of a piecewise polynomial at x [N]."""
    piece = np.searchsorted(breaks, x, side="right")
    distance = x - breaks[np.maximum(piece - 1, 0)]
    own = coefficients[piece]
    total = own[..., -1]
    for power in range(coefficients.shape[1] - 2, -1, -1):
        total = total * distance + own[..., power]
    return total


def evaluate_term(term: Term, values: Values, rows: int) -> Array:
    """Return the values of a term [N]."""
    with np.errstate(all="ignore"):
        product = np.ones(rows)
        for factor in term.factors:
            product = product * _evaluate(factor, values)
    return product


def nodes_of(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions in it."""
    yield expression
    if isinstance(expression, Call):
        for argument in expression.arguments:
            yield from nodes_of(argument)
    elif isinstance(expression, Piecewise):
        yield from nodes_of(expression.argument)


def is_logarithm(expression: Expression) -> bool:
    """Return True for the logarithm of a column."""
    return (
        isinstance(expression, Call)
        and expression.function == "log"
        and isinstance(next(iter(expression.arguments), None), Column)
    )


def inconsistency(expression: Expression, numbers: set[str], categories: dict[str, list[str]]) -> str | None:
    """Return what is wrong with an expression, given the columns of numbers and the categories of others, or None."""
    for node in nodes_of(expression):
        match node:
            case Column(column) if column not in numbers:
                return f"{column!r} is not a column of numbers"
            case Indicator(column, category) if category not in categories.get(column, []):
                return f"{category!r} is not a category of {column!r}"
            case IsMissing(column) if column not in numbers and column not in categories:
                return f"{column!r} is not a column"
            case Call(function, arguments) if function not in FUNCTIONS or len(arguments) != FUNCTIONS[function][0]:
                return f"{function!r} with {len(arguments)} arguments is unknown"
            case Piecewise(_, breaks, coefficients) if not _is_consistent(breaks, coefficients):
                return "a piecewise polynomial needs increasing breaks, and one more piece than breaks"
    return None


def _is_consistent(breaks: tuple[float, ...], coefficients: tuple[tuple[float, ...], ...]) -> bool:
    widths = {len(own) for own in coefficients}
    is_increasing = all(low < high for low, high in pairwise(breaks))
    is_whole = len(coefficients) == len(breaks) + 1 and len(widths) == 1 and 0 not in widths
    return bool(breaks) and is_increasing and all(map(math.isfinite, breaks)) and is_whole
