"""Text from records, as each place where it is written can bear it.

A record may come from anyone. Its names and titles must not move the cursor of a terminal, start a command in LaTeX,
be taken for a formula by a spreadsheet or for mathematics by a figure. (The page escapes by itself: Jinja2.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    return "".join(sign if sign.isprintable() else f"\\x{ord(sign):02x}" for sign in text)


def for_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text if sign.isprintable())


def for_markdown(text: str) -> str:
    """A cell or a line; HTML is shown, not obeyed."""
    return "".join(f"\\{sign}" if sign in "|<\\`" else sign for sign in text if sign.isprintable())


def for_figure(text: str) -> str:
    """Between two dollars matplotlib would read mathematics. Lines stay lines."""
    return "".join(sign for sign in text if sign.isprintable() or sign == "\n").replace("$", r"\$")


def as_csv(table: pd.DataFrame) -> str:
    """A table in which no text is a formula: spreadsheets take a leading apostrophe for "this is text"."""
    return table.map(_for_csv).rename(columns=_for_csv).to_csv(index=False)


def _for_csv(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    value = printable(value, longest=len(value))
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
