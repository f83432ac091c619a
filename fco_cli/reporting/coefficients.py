"""Tables of coefficients: numbers, text, CSV, LaTeX and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from fco_cli.problem.layout import Array

RATIOS = {"logistic": "odds ratio", "softmax": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}
COLUMNS = ("coefficient", "estimate", "error", "statistic", "p", "low", "high", "ratio", "ratio_low", "ratio_high")


def coefficient_lines(
    names: Sequence[str], estimates: Array, covariance: Array, level: float, degrees: int | None, loss: str
) -> list[dict[str, Any]]:
    """Return a line per coefficient: estimate, standard error, Wald test, interval and ratio.

    `degrees` are those of a t distribution; None: normal distribution.
    """
    from scipy import stats  # takes half a second, and only records of experiment=glm need it

    distribution = stats.norm if degrees is None else stats.t(degrees)
    error = np.sqrt(np.diag(covariance))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        statistic = estimates / error
        reach = distribution.ppf((1 + level) / 2) * error
        columns = [estimates, error, statistic, 2 * distribution.sf(np.abs(statistic))]
        columns += [estimates - reach, estimates + reach]
        if loss in RATIOS:
            columns += [np.exp(estimates), np.exp(estimates - reach), np.exp(estimates + reach)]
    used = COLUMNS[: len(columns) + 1]
    return [
        dict(zip(used, [name, *map(float, line)], strict=True))
        for name, line in zip(names, zip(*columns, strict=True), strict=True)
    ]


def headings(result: dict[str, Any]) -> list[str]:
    """Return the headings of the printed columns."""
    percent = f"{100 * result['level']:g} %"
    statistic = "z" if result["degrees"] is None else "t"
    common = ["", "estimate", "std. error", statistic, "p", f"{percent} low", f"{percent} high"]
    ratio = RATIOS.get(result["loss"])
    return common if ratio is None else [*common, ratio, f"{percent} low", f"{percent} high"]


def cells(line: dict[str, Any]) -> list[str]:
    """Return the printed cells of a line of `coefficient_lines`."""
    texts = [line["coefficient"]]
    for name in COLUMNS[1:]:
        if name in line:
            texts.append(format_p(line[name]) if name == "p" else format_number(line[name]))
    return texts


def format_number(value: float | None) -> str:
    """Return a number with four significant digits."""
    return "" if value is None else f"{value:.4g}"


def format_p(value: float | None) -> str:
    """Return a p-value as journals print it."""
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def as_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return aligned lines: the first column to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

    def line(row: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return [rule, line(head), rule, *map(line, rows), rule]


def as_latex(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, notes: Sequence[str] = ()) -> str:
    """Return a LaTeX table, for the package booktabs; notes are set below it."""
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in (head, *rows)]
    body = [r"\begin{table}", rf"\caption{{{_latex(caption)}}}", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"]
    body += [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]
    body += [rf"\par\footnotesize {_latex(note)}" for note in notes] + [r"\end{table}"]
    return "\n".join(body) + "\n"


def _latex(text: str) -> str:
    """Return a text with the special characters of LaTeX escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "–": "--"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)


def as_html(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, notes: Sequence[str]) -> str:
    """Return an HTML page with one table, which word processors accept by copy and paste."""
    rule = "border-top:1px solid black;"

    def row(cells: Sequence[str], tag: str, style: str) -> str:
        parts = [
            f'<{tag} style="text-align:{"left" if k == 0 else "right"};padding:2px 8px;{style}">{escape(cell)}</{tag}>'
            for k, cell in enumerate(cells)
        ]
        return "<tr>" + "".join(parts) + "</tr>"

    body = [row(head, "th", rule + "border-bottom:1px solid black;")]
    body += [row(cells, "td", "border-bottom:1px solid black;" if k == len(rows) - 1 else "")
             for k, cells in enumerate(rows)]  # fmt: skip
    remarks = "".join(f"<p>{escape(note)}</p>\n" for note in notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{escape(caption)}</title></head>\n<body>\n'
        f'<table style="border-collapse:collapse;font-family:serif">\n<caption>{escape(caption)}</caption>\n'
        + "\n".join(body) + f"\n</table>\n{remarks}</body></html>\n"
    )  # fmt: skip
