"""The writer of all CSV files: numbers read back exactly, and no spreadsheet takes a text for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

FORMULA_MARKS = ("=", "+", "-", "@")


def as_csv(header: Iterable[object], rows: Iterable[Iterable[object]], number_format: str = "") -> str:
    """Return a table as text; without a format every float has the digits that identify it."""
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
    """Return printable text; an apostrophe before one that begins like a formula says that it is text."""
    text = escape_unprintable(text)
    return f"'{text}" if text.lstrip().startswith(FORMULA_MARKS) else text


def escape_unprintable(text: str) -> str:
    """Return the text with control characters and lone surrogates as \\x1b."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
