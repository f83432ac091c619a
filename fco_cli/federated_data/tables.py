"""Tables: a folder with one CSV or Parquet file per client, or one file with a client column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Which columns mean what; all others are features."""

    label: str = "y"
    client: str = "client"
    split: str = "split"
    drop: tuple[str, ...] = ()


def read_tables(source: Path, columns: Columns) -> Arrays:
    """Read, check and convert; labels that are words become 0, 1, 2, ... in alphabetical order."""
    import pandas as pd

    if source.is_file():
        table = _read(source)
        _need(source, table, columns.client)
        parts = [(source, table)]
    else:
        files = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
        if not files:
            raise UserError(f"{source}: holds no .csv or .parquet files")
        parts = [(path, _read(path).assign(**{columns.client: path.stem})) for path in files]
    known = list(parts[0][1].columns)
    for path, table in parts:
        _need(path, table, columns.label)
        if list(table.columns) != known:
            odd = sorted(set(table.columns).symmetric_difference(known)) or list(table.columns)
            raise UserError(f"{path}: its columns differ from those of {parts[0][0].name}: {', '.join(odd)}")
        _check_cells(path, table, columns)
    table = pd.concat([table for _, table in parts], ignore_index=True)
    special = {columns.label, columns.client, columns.split, *columns.drop}
    for name in columns.drop:
        _need(source, table, name)
    features = [name for name in table.columns if name not in special]
    if not features:
        raise UserError(f"{source}: no column is left for the features")
    arrays = {
        "x": table[features].to_numpy(dtype=float),
        "client": table[columns.client].astype(str).to_numpy(dtype=np.str_),
        "features": np.array(features),
    }
    labels = table[columns.label]
    if pd.api.types.is_numeric_dtype(labels):
        arrays["y"] = labels.to_numpy(dtype=float)
    else:
        arrays["classes"], arrays["y"] = np.unique(labels.astype(str).to_numpy(dtype=np.str_), return_inverse=True)
    if columns.split in table:
        arrays["split"] = table[columns.split].astype(str).to_numpy(dtype=np.str_)
    return arrays


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow: pip install 'fco-cli[parquet]'") from None
    except (OSError, ValueError) as problem:  # pandas' and Arrow's errors are kinds of ValueError
        raise UserError(f"{path}: cannot be read: {problem}") from problem


def _need(path: Path, table: pd.DataFrame, column: str) -> None:
    if column not in table:
        raise UserError(f"{path}: has no column {column!r}; its columns are {', '.join(map(str, table.columns))}")


def _check_cells(path: Path, table: pd.DataFrame, columns: Columns) -> None:
    """Every cell that is used must be there, and a feature must be a number; CSV lines are counted from 1."""
    import pandas as pd

    for name in table.columns:
        if name in columns.drop:
            continue
        values = table[name]
        wrong = values.isna()
        needs_number = name not in (columns.label, columns.client, columns.split)
        if needs_number:
            wrong = pd.to_numeric(values, errors="coerce").isna()
        if wrong.any():
            row = int(np.argmax(wrong.to_numpy()))
            value = "empty" if values.isna().iloc[row] else repr(values.iloc[row])
            place = f"line {row + 2}" if path.suffix == ".csv" else f"row {row}"
            client = f"client {str(table[columns.client].iloc[row])!r}, " if columns.client in table else ""
            wanted = "every feature must be a number" if needs_number else "it must be given in every row"
            raise UserError(f"{path}: {client}{place}: column {name!r} is {value}; {wanted}")
