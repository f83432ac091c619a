"""The record of experiment=table1 as a Python object, and its printed table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fco_cli.reporting.coefficients import as_html, as_latex, as_text, format_p
from fco_cli.reporting.text import printable
from fco_cli.results import Table1Result, check_complete, read_result

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RecordedTable1:
    """Record of experiment=table1."""

    result: dict[str, Any]  # content of result.json
    folder: Path
    slug: str = ""

    @classmethod
    def read(cls, folder: str | Path) -> RecordedTable1:
        """Return the record in a folder; raise BadRecord if it is invalid."""
        folder = Path(folder)
        result = read_result(folder, Table1Result)
        check_complete(folder, Table1Result, result)
        return cls(result, folder, f"table1_{printable(result['task'])}")

    @property
    def table(self) -> pd.DataFrame:
        """Table 1, by column of the data and statistic, with a column per client."""
        import pandas as pd

        head, *rows = rows_of(self.result, repeat=True)
        return pd.DataFrame(rows, columns=head).set_index(head[:2])

    def summary(self) -> str:
        """Return the table as text."""
        return "\n".join(summary_lines(self.result))


def rows_of(result: dict[str, Any], repeat: bool) -> list[list[str]]:
    """Return the header and the rows of the table as text; `repeat` names the column of the data in every row."""
    lines: Sequence[dict[str, Any]] = result["lines"]
    extra = [name for name, used in (("SMD", result["smd"]), ("p", result["p"])) if used]
    rows = [["column", "statistic", *result["heads"], *extra]]
    previous = None
    for line in lines:
        name = line["column"] if repeat or line["column"] != previous else ""
        previous = line["column"]
        values = {"SMD": "" if line["smd"] is None else f"{line['smd']:.3f}", "p": format_p(line["p"])}
        rows.append([name, line["statistic"], *line["cells"], *(values[key] for key in extra)])
    return rows


def caption(result: dict[str, Any]) -> str:
    """Return the caption of the table."""
    clients = f"{result['clients']:,} client{'s' if result['clients'] != 1 else ''}"
    return f"Characteristics of {result['rows']:,} rows of {clients}: {result['task']}"


def summary_lines(result: dict[str, Any]) -> list[str]:
    """Return the lines of the printed table."""
    head, *rows = rows_of(result, repeat=False)
    return [caption(result), *as_text(["", "", *head[2:]], rows), *result["notes"]]


def table_files(result: dict[str, Any]) -> dict[str, str]:
    """Return the table as LaTeX and HTML files."""
    head, *rows = rows_of(result, repeat=False)
    head = ["", "", *head[2:]]
    return {
        "table1.tex": as_latex(head, rows, caption(result), result["notes"]),
        "table1.html": as_html(head, rows, caption(result), result["notes"]),
    }
