"""Tables: a folder with one file per client, or one file with a client column; what CSV and Parquet have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fco_cli.errors import UserError
from fco_cli.federated_data.format import Arrays, check_different, listed, shown
from fco_cli.federated_data.source import Format, Wanted

NO_DATES = "dates are no numbers: give the days since one of them, or leave the column out (--drop)"


@dataclass(frozen=True)
class Places:
    """Where in the header the columns stand that are read."""

    label: int
    client: int | None  # None: the file is one client's, named after it
    split: int | None
    features: list[int]


def places(path: Path, header: Sequence[str], wanted: Wanted) -> Places:
    """Find the columns by their names."""
    columns, found = wanted.columns, {name: place for place, name in enumerate(header)}
    check_different(path, "the columns for label, client and split", [columns.label, columns.client, columns.split])
    for name in [*columns.drop, columns.label, *([] if wanted.in_folder else [columns.client])]:
        if name not in found:
            raise UserError(f"{path}: has no column {shown(name)!r}; its columns are {listed(header)}")
    used = [name for name in header if name not in columns.drop]
    check_different(path, "columns", used)
    if "" in used:
        raise UserError(f"{path}: column {found[''] + 1} has no name; the numbers of the rows are no feature")
    if (not wanted.in_folder and columns.client in columns.drop) or columns.label in columns.drop:
        raise UserError(f"{path}: neither {shown(columns.label)!r} nor {shown(columns.client)!r} can be left out")
    if wanted.in_folder and columns.client in used:
        raise UserError(
            f"{path}: has a column {shown(columns.client)!r}, but is one client's file, named after it: "
            "leave the column out (--drop), or make one table of all files"
        )
    special = {columns.label, columns.client, columns.split}
    features = [found[name] for name in used if name not in special]
    if not features:
        raise UserError(f"{path}: no column is left for the features")
    client = None if wanted.in_folder else found[columns.client]
    split = found[columns.split] if columns.split in used else None
    return Places(found[columns.label], client, split, features)


class Table(Format):
    """Labels that are words become 0, 1, 2, ... in alphabetical order, once all files are read."""

    def join(self, parts: list[tuple[Path, Arrays]]) -> Arrays:
        first_path, first = parts[0]
        for path, part in parts[1:]:
            ours, theirs = part["features"].tolist(), first["features"].tolist()
            if ours != theirs:
                odd = sorted(set(ours) ^ set(theirs)) or ours
                raise UserError(f"{path}: its columns differ from those of {first_path.name}: {listed(odd)}")
            if (part["y"].dtype.kind == "U") != (first["y"].dtype.kind == "U"):
                raise UserError(f"{path}: only one of it and {first_path.name} has numbers for labels")
        arrays = super().join(parts)
        if arrays["y"].dtype.kind == "U":
            arrays["classes"], arrays["y"] = np.unique(arrays["y"], return_inverse=True)
        return arrays
