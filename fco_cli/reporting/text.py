"""Text from records, as each place where it is written can bear it.

A record may come from anyone. Its names and titles must not move the cursor of a terminal, start a command in LaTeX,
be taken for a formula by a spreadsheet or for mathematics by a figure. (The page escapes by itself: Jinja2.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fco_cli import csv_writer

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 200  # characters of a value in a line

LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "∂": r"$\partial$", "ψ": r"$\psi$", "–": "--",
}  # fmt: skip


def printable(value: Any, longest: int = LONGEST) -> str:
    """One line without control characters."""
    text = value if isinstance(value, str) else repr(value)
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return csv_writer.escape_unprintable(text)


def for_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text if sign.isprintable())


def for_markdown(text: str) -> str:
    """A cell or a line; HTML is shown, not obeyed."""
    return "".join(f"\\{sign}" if sign in "|<\\`" else sign for sign in text if sign.isprintable())


def for_figure(text: str) -> str:
    """Between two dollars matplotlib would read mathematics. Lines stay lines."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\n").replace("$", r"\$")


def as_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV without its index; missing values are empty."""
    missing = table.isna().to_numpy()
    rows = table.astype(object).to_numpy()
    rows[missing] = ""
    return csv_writer.as_csv(table.columns, rows)
