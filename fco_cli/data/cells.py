"""What a cell of a table means: a number, a missing value, or a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fco_cli.data.format import listed, shown
from fco_cli.errors import UserError

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")  # and what a user names
TRUTH = {"true": 1.0, "false": 0.0}
DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}(\D|$)")
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d*),\d+([eE][+-]?\d+)?")
NO_COMMAS = "it is a number with a decimal comma: write numbers with a point (1.6)"
NO_WORDS = "a column holds numbers or categories: name the word as missing, or the column as categorical"
NO_DATES = "dates are no numbers: give the days since one of them, or leave the column out (drop)"


def as_number(cell: str) -> float | None:
    """The number that a cell is; none if it is a text. Python would take 1_000 for one."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return TRUTH.get(cell.strip().lower())


def category(number: float) -> str:
    """The name of a category that was written as a number: 1, 1.0 and 1e0 are one."""
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(float(number))


@dataclass
class Cells:
    """The reading of cells, given the words that stand for a missing value."""

    words: frozenset[str] = frozenset(MISSING)
    numbers: frozenset[float] = frozenset()  # -999: missing wherever it stands
    in_column: dict[str, set[float]] = field(default_factory=dict)  # chol: 0
    known: dict[str, float | str] = field(default_factory=dict)  # the meanings that were asked for
    objects: dict[str, str] = field(default_factory=dict)

    @classmethod
    def where(cls, missing: Sequence[str], header: Sequence[str]) -> Cells:
        """`missing` are words, numbers, or a number of one column: chol:0."""
        words, numbers = set(MISSING), set()
        in_column: dict[str, set[float]] = {}
        for text in missing:
            column, colon, rest = text.rpartition(":")
            number = as_number(rest)
            if number is None or (colon and column not in header):
                if colon:
                    raise UserError(
                        f"missing: got {shown(text)!r}, must be a word, a number, or a column and a number of it, "
                        f"such as age:0; the columns are {listed(header)}"
                    )
                words.add(text.strip())
            elif colon:
                in_column.setdefault(column, set()).add(number)
            else:
                numbers.add(number)
        return cls(frozenset(words), frozenset(numbers), in_column)

    def numbers_of(self, cells: list[str]) -> list[float]:
        """Of cells that are plain numbers or missing; a ValueError if one is not."""
        if "_" in "".join(cells):
            raise ValueError  # Python takes 1_000 for a number
        missing, nan = self.words, np.nan
        return [nan if cell in missing else float(cell) for cell in cells]

    def one_object(self, text: str) -> str:
        """The same object for all equal texts."""
        return self.objects.setdefault(text, text)

    def meaning(self, cell: str) -> float | str:
        """A number, NaN for a missing value, or the text without the blanks around it."""
        if (found := self.known.get(cell)) is None:
            text = cell.strip()
            number = np.nan if text in self.words else as_number(text)
            found = self.known[cell] = text if number is None else number
        return found

    def forget(self, numbers: np.ndarray, header: Sequence[str]) -> None:
        """Numbers [N, d] of the columns `header` that mean missing become NaN, in place."""
        for number in self.numbers:
            numbers[numbers == number] = np.nan
        for column, values in self.in_column.items():
            if column in header:
                own = numbers[:, list(header).index(column)]
                own[np.isin(own, list(values))] = np.nan
