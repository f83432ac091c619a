"""The label of a table: a column, or a condition on one, such as `num>0` or `diagnosis==sick`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fco_cli.data.cells import parse_number
from fco_cli.data.format import shown
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array

ORDERINGS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
EQUALITIES: dict[str, Callable[[Any, Any], Any]] = {"==": operator.eq, "!=": operator.ne}
CONDITION = re.compile(r"(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+)")


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
        """Return 1 where the condition holds and 0 elsewhere; without a condition, the column."""
        if not self.comparison:
            return column
        value: str | float | None = self.value if column.dtype.kind == "U" else parse_number(self.value)
        if value is None or (column.dtype.kind == "U" and self.comparison in ORDERINGS):
            holds = "texts" if column.dtype.kind == "U" else "numbers"
            raise UserError(f"label: got {shown(self.text)!r}, but the column holds {holds}")
        return (ORDERINGS | EQUALITIES)[self.comparison](column, value).astype(float)
