"""Where in a table's header the columns stand that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fco_cli.data.format import check_different, listed, shown
from fco_cli.data.label import Label
from fco_cli.data.source import Columns, Wanted
from fco_cli.errors import UserError


@dataclass(frozen=True)
class Places:
    """Of the label, the client, the split, the weights and the event, where these are read, and of the features."""

    meaning: Label
    label: int | None  # None: not wanted, for the rows are there to be predicted
    client: int | None  # None: the file is one client's, named after it, or the rows are nobody's
    split: int | None
    weights: int | None
    features: list[int]
    event_meaning: Label | None = None
    event: int | None = None

    @property
    def others(self) -> list[int]:
        """All but the features."""
        return [place for place in (self.label, self.client, self.split, self.weights, self.event) if place is not None]


def places(path: Path, header: Sequence[str], wanted: Wanted) -> Places:
    """Find the columns by their names; all that have no other meaning are features."""
    columns, found = wanted.columns, {name: place for place, name in enumerate(header)}
    meaning = Label.of(columns.label, header)
    event = None if columns.event is None else Label.of(columns.event, header)
    own_columns = (meaning.column, columns.client, columns.split, columns.weights, event and event.column)
    special = [name for name in own_columns if name]
    check_different(path, "the columns for label, client, split, weights and event", special)
    needed = _needed(meaning, event, wanted)
    _check_there(path, header, wanted, needed)
    dropped = set(columns.drop)
    used = [name for name in header if name not in dropped]
    check_different(path, "columns", used)
    if "" in used:
        raise UserError(f"{path}: column {found[''] + 1} has no name; the numbers of the rows are no feature")
    if wanted.labelled and wanted.in_folder and not columns.dealt and columns.client in used:
        raise UserError(
            f"{path}: has a column {shown(columns.client)!r}, but is one client's file, named after it: "
            "leave the column out (drop), or make one table of all files"
        )
    features = [found[name] for name in used if name not in special]
    if not features:
        raise UserError(f"{path}: no column is left for the features")
    if odd := [name for name in columns.categorical if name in special]:
        raise UserError(f"{path}: {shown(odd[0])!r} is named as categorical, but is no feature")
    if wanted.labelled and columns.split in used:
        needed.append(columns.split)
    own = {name: found[name] for name in needed}
    client, weights = own.get(columns.client), own.get(columns.weights or "")
    happened = None if event is None else own.get(event.column)
    return Places(meaning, own.get(meaning.column), client, own.get(columns.split), weights, features, event, happened)


def _needed(meaning: Label, event: Label | None, wanted: Wanted) -> list[str]:
    """The columns beside the features without which a table cannot be used; to predict, none."""
    columns = wanted.columns
    if not wanted.labelled:
        return []
    client = [] if wanted.in_folder or columns.dealt else [columns.client]
    split = [] if columns.split == Columns.split else [columns.split]
    weights = [columns.weights] if columns.weights else []
    return [meaning.column, *client, *split, *weights, *([] if event is None else [event.column])]


def _check_there(path: Path, header: Sequence[str], wanted: Wanted, needed: list[str]) -> None:
    columns, there = wanted.columns, set(header)
    dropped = columns.drop if wanted.labelled else ()  # what is left out need not be in a table to predict from
    for name in (*dropped, *columns.categorical, *needed):
        if name not in there:
            hint = " (rows that are nobody's can be dealt to clients: task.partition)" if name == columns.client else ""
            raise UserError(f"{path}: has no column {shown(name)!r}; its columns are {listed(header)}{hint}")
    if lost := [name for name in (*needed, *columns.categorical) if name in columns.drop]:
        raise UserError(f"{path}: {shown(lost[0])!r} cannot be left out and used")
