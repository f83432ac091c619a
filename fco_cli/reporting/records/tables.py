"""Reader of the tables of a record."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fco_cli.reporting.text import printable
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

if TYPE_CHECKING:
    import pandas as pd


class Columns(NamedTuple):
    """Required columns of a table and its text columns; all other columns must hold numbers."""

    required: tuple[str, ...]
    text: tuple[str, ...] = ()


def read_table(path: Path, columns: Columns) -> pd.DataFrame:
    """Read a CSV file; raise BadRecord if a column is missing or has the wrong type."""
    import pandas as pd

    try:
        table = pd.read_csv(io.BytesIO(read_bounded(path, 64 * MEBIBYTE)), dtype=dict.fromkeys(columns.text, str))
    except (ValueError, OverflowError, pd.errors.ParserError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord(printable(f"{path.name}: not a table: {problem}")) from problem
    if missing := [name for name in columns.required if name not in table]:
        raise BadRecord(f"{path.name}: no column {missing[0]!r}")
    for name in table.columns.difference(list(columns.text)):
        if len(table) and table[name].dtype.kind not in "if":
            raise BadRecord(printable(f"{path.name}: column {name!r} must hold numbers"))
    return table
