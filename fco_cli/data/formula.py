"""Formulas: the right side of `age * sex + bs(chol, df=4) + C(cp)`, parsed without executing any of it.

`formulaic` expands the operators into terms. Factors are columns, C(column) for categories, bs, ns and poly, and
arithmetic of columns of numbers. Categories have treatment coding, with as few indicators as the terms before leave
necessary, as in R and patsy.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import Any

from fco_cli.data.expressions import FUNCTIONS, Call, Column, Expression, Number, nodes_of
from fco_cli.data.format import format_list, shown
from fco_cli.errors import UserError, did_you_mean, install_extra

KEY = "task.formula"
BASES = {"bs": ("df", "degree", "knots", "lower_bound", "upper_bound"), "ns": ("df", "knots"), "poly": ("degree",)}
MAX_DEGREE = 10
MAX_LENGTH = 10_000  # characters
_OPERATORS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}
_CALLS = [name for name, own in FUNCTIONS.items() if own.arguments == 1 and name != "negative"]
_QUOTED = re.compile(r"`([^`]+)`")
_TWO_SIDES = re.compile(r"~")


@dataclass(frozen=True)
class Factor:
    """Factor of a term: a column or an expression and, for a basis, its name and options."""

    text: str
    argument: Expression
    is_category: bool = False  # declared by C(column)
    basis: str = ""  # key of BASES
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def column(self) -> str | None:
        """The column, if the factor is one."""
        return self.argument.column if isinstance(self.argument, Column) and not self.basis else None


@dataclass(frozen=True)
class Formula:
    """Terms of a formula, each a product of factors; the intercept is not listed."""

    text: str
    terms: tuple[tuple[Factor, ...], ...]

    @property
    def columns(self) -> list[str]:
        """Columns in the formula, in order of their first use."""
        nodes = chain.from_iterable(nodes_of(factor.argument) for term in self.terms for factor in term)
        return list(dict.fromkeys(node.column for node in nodes if isinstance(node, Column)))

    @property
    def categorical(self) -> list[str]:
        """Columns that C(...) declares as categorical."""
        own = [factor.column for term in self.terms for factor in term if factor.is_category]
        return list(dict.fromkeys(column for column in own if column is not None))


@lru_cache(maxsize=16)
def parse(text: str) -> Formula:
    """Return the terms of a formula; raise UserError if it is invalid."""
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_LENGTH:
        raise _error(text, "must be the right side of a formula, such as age * sex + bs(chol, df=4)")
    if _TWO_SIDES.search(_QUOTED.sub("", text)):
        raise _error(text, "must be the right side only, without ~: the label is task.label")
    try:
        from formulaic.parser import DefaultFormulaParser
    except ImportError as problem:
        raise UserError(f"{KEY}: formulaic is not installed; {install_extra('formula')}") from problem
    try:
        parsed = [[factor.expr for factor in term.factors] for term in DefaultFormulaParser().get_terms(text).root]
    except Exception as problem:  # a parser of another package: syntax errors, AttributeError for several parts
        reason = re.sub(r"\x1b\[[0-9;]*m", "", str(problem)).split("\n")[0].split(". ")[0]
        reason = "it has several parts" if isinstance(problem, AttributeError) else reason
        raise _error(text, f"is not a formula: {reason or type(problem).__name__}") from problem
    if ["1"] not in parsed:
        raise _error(text, "must not remove the intercept (0 or -1), which every model has")
    terms = tuple(tuple(_factor(one, text) for one in term) for term in parsed if term != ["1"])
    if not terms:
        raise _error(text, "must have a term other than the intercept")
    return Formula(text, terms)


def _error(text: object, fault: str) -> UserError:
    return UserError(f"{KEY}: got {shown(text)!r}, {fault}")


def _factor(expression: str, text: str) -> Factor:
    """Return a factor, given as a column name or as a Python expression."""
    names: list[str] = []

    def identifier(match: re.Match[str]) -> str:
        names.append(match[1])
        return f"_quoted_{len(names) - 1}"

    try:
        tree = ast.parse(_QUOTED.sub(identifier, expression), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return Factor(expression, Column(expression))  # a quoted column name, such as `heart rate`
    if isinstance(tree, ast.Name):
        return Factor(expression, Column(_name(tree, names)))
    if isinstance(tree, ast.Constant):
        raise _error(text, f"must have columns in place of the number {expression}")
    name = _function(tree)
    if isinstance(tree, ast.Call) and name == "C":
        column = _expression(tree.args[0], names, text) if len(tree.args) == 1 and not tree.keywords else None
        if not isinstance(column, Column):
            raise _error(text, f"must have the name of one column in {expression}")
        return Factor(expression, column, is_category=True)
    if isinstance(tree, ast.Call) and name in BASES:
        return _basis(tree, name, expression, names, text)
    if isinstance(tree, ast.Call) and name == "I" and len(tree.args) == 1 and not tree.keywords:
        tree = tree.args[0]
    return Factor(expression, _expression(tree, names, text))


def _function(tree: ast.AST) -> str:
    """Return the name of a called function, also of NumPy's: np.log; empty for other expressions."""
    called = tree.func if isinstance(tree, ast.Call) else None
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in ("np", "numpy"):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _name(tree: ast.Name, names: Sequence[str]) -> str:
    place = tree.id.removeprefix("_quoted_")
    return names[int(place)] if tree.id.startswith("_quoted_") and place.isdigit() else tree.id


def _expression(tree: ast.AST, names: Sequence[str], text: str) -> Expression:
    """Return the expression of a Python syntax tree: arithmetic, numbers, columns and functions of one number."""
    match tree:
        case ast.Name():
            return Column(_name(tree, names))
        case ast.Constant(value) if isinstance(value, int | float) and not isinstance(value, bool):
            return Number(float(value))
        case ast.UnaryOp(ast.USub(), operand):
            return Call("negative", (_expression(operand, names, text),))
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            own = _expression(left, names, text), _expression(right, names, text)
            return Call(_OPERATORS[type(operator)], own)
        case ast.Call(args=[argument], keywords=[]) if _function(tree) in _CALLS:
            return Call(_function(tree), (_expression(argument, names, text),))
    allowed = [*_CALLS, "C", "I", *BASES]
    what = _function(tree) or ast.unparse(tree)
    raise _error(
        text, f"has {shown(what)!r}, must have columns, arithmetic, {format_list(allowed)}{did_you_mean(what, allowed)}"
    )


def _basis(tree: ast.Call, name: str, expression: str, names: Sequence[str], text: str) -> Factor:
    """Return a factor with several columns, such as bs(chol, df=4)."""
    allowed = BASES[name]
    options: dict[str, Any] = {}
    try:
        for key, value in [
            *zip(allowed, tree.args[1:], strict=False),
            *((one.arg, one.value) for one in tree.keywords),
        ]:
            options[str(key)] = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        options = {"": None}
    if not tree.args or len(tree.args) > 2 or not options.keys() <= set(allowed):
        raise _error(text, f"has {expression}, must be {name}(column, ...) with numbers for {', '.join(allowed)}")
    _check_basis(name, options, expression, text)
    own = {key: tuple(map(float, value)) if key == "knots" else value for key, value in options.items()}
    return Factor(expression, _expression(tree.args[0], names, text), False, name, tuple(sorted(own.items())))


def _check_basis(name: str, options: dict[str, Any], expression: str, text: str) -> None:
    """Raise UserError for invalid options of a basis."""
    degree, df, knots = options.get("degree", 3 if name == "bs" else None), options.get("df"), options.get("knots")
    if name != "ns" and not (type(degree) is int and 1 <= degree <= MAX_DEGREE):
        raise _error(text, f"has {expression}, must have a whole number from 1 to {MAX_DEGREE} as degree")
    if name == "poly":
        return
    if (df is None) == (knots is None):
        raise _error(text, f"has {expression}, must have df or knots")
    least = degree if name == "bs" and degree is not None else 1
    if df is not None and not (type(df) is int and least <= df <= 100):
        raise _error(text, f"has {expression}, must have a whole number from {least} to 100 as df")
    numbers = [*(knots or ()), *(options[key] for key in ("lower_bound", "upper_bound") if key in options)] if (
        isinstance(knots, list | tuple | None)
    ) else [None]  # fmt: skip
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        raise _error(text, f"has {expression}, must have numbers as knots and bounds")


def coded_products(
    terms: Sequence[tuple[Factor, ...]], categorical: set[str]
) -> list[tuple[tuple[Factor, ...], list[dict[Factor, bool]]]]:
    """Return, for every term, its products: by factor with categories, whether all of them have an indicator.

    A term spans the products of (1 + indicators but the first) over its factors with categories. Products that other
    terms have spanned before are left out, and pairs of the others are merged, as in patsy.
    """
    used: dict[frozenset[Factor], set[frozenset[str]]] = {frozenset(): {frozenset()}}
    coded = []
    for term in terms:
        categories = [factor for factor in term if factor.column in categorical]
        numbers = frozenset(factor for factor in term if factor not in categories)
        known = used.setdefault(numbers, set())
        subsets = [
            own
            for size in range(len(categories) + 1)
            for own in combinations(categories, size)
            if frozenset(str(one.column) for one in own) not in known
        ]
        known |= {frozenset(str(one.column) for one in own) for own in subsets}
        coded.append((term, _merged([dict.fromkeys(own, False) for own in subsets])))
    return coded


def _merged(products: list[dict[Factor, bool]]) -> list[dict[Factor, bool]]:
    """Merge products that differ by one factor: together they have an indicator for each of its categories."""
    for i, short in enumerate(products):
        for j in range(i + 1, len(products)):
            long = products[j]
            extra = [factor for factor in long if factor not in short]
            if len(extra) == 1 and not long[extra[0]] and all(long.get(one) == full for one, full in short.items()):
                whole = {factor: factor == extra[0] or full for factor, full in long.items()}
                return _merged([*products[:i], *products[i + 1 : j], whole, *products[j + 1 :]])
    return products
