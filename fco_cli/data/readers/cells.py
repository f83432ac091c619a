"""Cells of tables: numbers, missing values, texts, renamed columns and texts, and labels, which may be conditions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fco_cli.data.format import format_list, shown
from fco_cli.data.readers.numerals import number_in
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

MISSING = ("", "?", "NA", "N/A", "na", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")  # users add their own
TRUTH = {"true": 1.0, "false": 0.0}
ORDERINGS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
EQUALITIES: dict[str, Callable[[Any, Any], Any]] = {"==": operator.eq, "!=": operator.ne}
CONDITION = re.compile(r"(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+)")


def parse_number(cell: str, decimal: str | None = None) -> float | None:
    """Return the number in a cell, or None for text; unlike in Python, 1_000 is text.

    With `decimal`, the number has this decimal separator and may have thousands separators.
    """
    if decimal is not None:
        number = number_in(cell.strip(), decimal)
        return TRUTH.get(cell.strip().lower()) if number is None else number
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return TRUTH.get(cell.strip().lower())


def category_name(number: float) -> str:
    """Return the name of a category that is written as a number; 1, 1.0 and 1e0 have the same name."""
    return str(int(number)) if abs(number) < 1e15 and number == int(number) else repr(float(number))


@dataclass
class CellParser:
    """Parser of cells with a given set of missing-value markers."""

    missing_texts: frozenset[str] = frozenset(MISSING)
    missing_numbers: frozenset[float] = frozenset()  # in any column, such as -999
    missing_by_column: dict[str, set[float]] = field(default_factory=dict)  # in one column, such as chol: 0
    decimal: str | None = None  # decimal separator; None: a point, unless a column has commas (numerals.py)
    cache: dict[str, float | str] = field(default_factory=dict)  # parsed cells
    objects: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_markers(cls, missing: Sequence[str], header: Sequence[str], decimal: str | None = None) -> CellParser:
        """Return the parser for the given markers: texts, numbers, or a number in one column such as chol:0."""
        missing_texts, numbers = set(MISSING), set()
        missing_by_column: dict[str, set[float]] = {}
        for text in missing:
            column, colon, rest = text.rpartition(":")
            number = parse_number(rest)
            if number is None or (colon and column not in header):
                if colon:
                    raise UserError(
                        f"missing: got {shown(text)!r}, must be a text, a number, or a column and a number, "
                        f"such as age:0; columns are {format_list(header)}"
                    )
                missing_texts.add(text.strip())
            elif colon:
                missing_by_column.setdefault(column, set()).add(number)
            else:
                numbers.add(number)
        return cls(frozenset(missing_texts), frozenset(numbers), missing_by_column, decimal)

    def parse_numbers(self, cells: list[str]) -> list[float]:
        """Return the values of numeric or missing cells; raise ValueError for any other cell."""
        if "_" in "".join(cells):
            raise ValueError  # float() accepts 1_000
        missing, nan = self.missing_texts, np.nan
        return [nan if cell in missing else float(cell) for cell in cells]

    def intern(self, text: str) -> str:
        """Return one shared object for equal texts."""
        return self.objects.setdefault(text, text)

    def parse(self, cell: str) -> float | str:
        """Return a number, NaN for a missing value, or the stripped text."""
        if (value := self.cache.get(cell)) is None:
            text = cell.strip()
            number = np.nan if text in self.missing_texts else parse_number(text, self.decimal)
            value = self.cache[cell] = text if number is None else number
        return value

    def mark_missing(self, numbers: np.ndarray, header: Sequence[str]) -> None:
        """Replace missing-value markers among the numbers [N, d] of the columns `header` by NaN, in place."""
        for number in self.missing_numbers:
            numbers[numbers == number] = np.nan
        for column, values in self.missing_by_column.items():
            if column in header:
                column_values = numbers[:, list(header).index(column)]
                column_values[np.isin(column_values, list(values))] = np.nan


@dataclass(frozen=True)
class Renaming:
    """New names of columns and of texts in columns: `old=new`, or `column:old=new` for a text."""

    columns: dict[str, str]  # by the name in the file
    texts: dict[str, dict[str, str]]  # by column (new name) and text
    fold_case: bool = False  # texts that differ only in case are equal

    @classmethod
    def of(
        cls, source: object, rules: Sequence[str], header: Sequence[str], fold_case: bool, labeled: bool
    ) -> Renaming:
        """Parse the rules for a file with these columns; a column may have its new name already.

        A file without labels, for prediction, may lack columns.
        """
        columns: dict[str, str] = {}
        texts: dict[str, dict[str, str]] = {}
        for rule in rules:
            old, equals, new = (part.strip() for part in rule.rpartition("="))
            column, colon, text = (part.strip() for part in old.rpartition(":"))
            if not equals or not old or not new:
                raise UserError(
                    f"map: got {shown(rule)!r}, must be old=new, or column:old=new for the texts of a column"
                )
            if colon and old not in header:
                texts.setdefault(columns.get(column, column), {})[text] = new
            elif old in header and new in header:
                raise UserError(f"{source}: map: got {shown(rule)!r}, but there are columns {old!r} and {new!r}")
            elif old in header:
                columns[old] = new
            elif new not in header and labeled:
                raise UserError(f"{source}: map: column {shown(old)!r} not found; columns are {format_list(header)}")
        renamed = [columns.get(name, name) for name in header]
        for column in texts:
            if column not in renamed and labeled:
                raise UserError(
                    f"{source}: map: column {shown(column)!r} not found; columns are {format_list(renamed)}"
                )
        return cls(columns, texts, fold_case)

    def header(self, header: Sequence[str]) -> list[str]:
        """Return the new names of the columns."""
        return [self.columns.get(name, name) for name in header]

    def new_texts(self, column: str, texts: Array) -> list[str]:
        """Return the texts of a column after its rules."""
        known = self.texts.get(column, {})
        return [known.get(text, text) for text in texts.tolist()]

    def missing_cells(self, column: str, cells: CellParser) -> list[str]:
        """Return the texts of a column that are renamed to a missing-value marker."""
        return [old for old, new in self.texts.get(column, {}).items() if new in cells.missing_texts]

    def names(self, column: str, texts: Array) -> Array:
        """Return the new names of a column; names lose surrounding white space."""
        distinct, member = np.unique(np.char.strip(texts), return_inverse=True)
        new = self.new_texts(column, distinct)
        return np.array([text.casefold() if self.fold_case else text for text in new], dtype=np.str_)[member]


@dataclass(frozen=True)
class Label:
    """Label column, with an optional condition that defines the positive class."""

    column: str
    comparison: str = ""
    value: str = ""

    @classmethod
    def of(cls, text: str, header: Sequence[str]) -> Label:
        """Parse a label; a text in the header is a column name even if it looks like a condition."""
        match = None if text in header else CONDITION.fullmatch(text.strip())
        label = cls(text) if match is None else cls(*match.groups())
        if label.comparison in ORDERINGS and parse_number(label.value) is None:
            raise UserError(f"label: got {shown(text)!r}; {label.comparison} must be followed by a number")
        return label

    @property
    def classes(self) -> Array | None:
        """Names of the two classes of a condition, or None."""
        if not self.comparison:
            return None
        return np.array([f"not {self.text}", self.text])

    @property
    def text(self) -> str:
        return f"{self.column}{self.comparison}{self.value}"

    def apply(self, column: Array) -> Array:
        """Return 1 where the condition holds and 0 otherwise; without a condition, the column."""
        if not self.comparison:
            return column
        value: str | float | None = self.value if column.dtype.kind == "U" else parse_number(self.value)
        if value is None or (column.dtype.kind == "U" and self.comparison in ORDERINGS):
            holds = "texts" if column.dtype.kind == "U" else "numbers"
            raise UserError(f"label: got {shown(self.text)!r}, but the column holds {holds}")
        return (ORDERINGS | EQUALITIES)[self.comparison](column, value).astype(float)
