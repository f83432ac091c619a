"""Escaping of text from records for terminals, LaTeX, Markdown, CSV and figures.

Records are untrusted input: names and titles must not contain terminal control sequences, LaTeX commands, spreadsheet
formulas or matplotlib math. The HTML page is escaped by Jinja2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fco_cli import files

if TYPE_CHECKING:
    import pandas as pd

MAX_LENGTH = 200  # characters of a value in a message

LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "∂": r"$\partial$", "ψ": r"$\psi$", "–": "--",
}  # fmt: skip


def printable(value: Any, max_length: int = MAX_LENGTH) -> str:
    """Return a value as one line of bounded length without control characters."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return files.escape_unprintable(text)


def for_latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(LATEX.get(sign, sign) for sign in text if sign.isprintable())


def for_markdown(text: str) -> str:
    """Escape a table cell or a line of Markdown, including HTML."""
    return "".join(f"\\{sign}" if sign in "|<\\`" else sign for sign in text if sign.isprintable())


def for_figure(text: str) -> str:
    """Escape dollar signs, which start math in matplotlib, and drop control characters except line breaks."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\n").replace("$", r"\$")


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV without its index; missing values are empty."""
    missing = table.isna().to_numpy(dtype=bool)
    rows = table.astype(object).to_numpy(dtype=object, copy=True)
    rows[missing] = ""
    return files.as_csv(table.columns, rows)
