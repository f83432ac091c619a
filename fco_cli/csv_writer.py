"""Writer of CSV files: numbers can be read back exactly, and spreadsheets do not interpret text as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULA_MARKS = ("=", "+", "-", "@")


def as_csv(header: Iterable[object], rows: Iterable[Iterable[object]], number_format: str = "") -> str:
    """Return a table as CSV; without a number format, floats have enough digits to be read back exactly."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name, "") for name in header])
    writer.writerows([_cell(value, number_format) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object, number_format: str) -> Any:
    if isinstance(value, str):
        return as_text_cell(value)
    return format(value, number_format) if number_format and isinstance(value, float) else value


def as_text_cell(text: str) -> str:
    """Return printable text, with an apostrophe in front if it begins like a formula."""
    text = escape_unprintable(text)
    return f"'{text}" if text.lstrip().startswith(FORMULA_MARKS) else text


def escape_unprintable(text: str) -> str:
    """Return the text with control characters and lone surrogates escaped as in \\x1b."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
