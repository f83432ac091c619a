"""Tables with some of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fco_cli.data.format import FederatedData, format_list, shown
from fco_cli.data.readers.dates import Derivation
from fco_cli.data.readers.source import Columns
from fco_cli.data.sparse import is_sparse
from fco_cli.errors import UserError, did_you_mean


def restrict_roles(columns: Columns, names: Sequence[str]) -> Columns:
    """Return the roles of columns in a table that may have these features only."""
    known = {*names, *(name.rpartition(" [")[0] for name in names)}  # a unit is not part of the name in the file

    def is_known(marker: str) -> bool:
        column, colon, _ = marker.rpartition(":")
        return not colon or column in known

    label = columns.label
    return replace(
        columns,
        categorical=tuple(name for name in columns.categorical if name in known or name == label),
        missing=tuple(filter(is_known, columns.missing)),
        derive=tuple(text for text in columns.derive if Derivation.name_in(text) in known),
    )


def select_columns(data: FederatedData, names: Sequence[str], key: str) -> FederatedData:
    """Return the data with these columns of features, in this order; `key` is the setting that names them."""
    if is_sparse(data.x):
        raise UserError(f"{key}: must be null for the sparse rows of {data.source}, which have no columns by name")
    known = data.feature_names
    for name in names:
        if name not in known:
            columns = f"columns are {format_list(known)}{did_you_mean(name, known)}"
            raise UserError(f"{key}: column {shown(name)!r} not found in {data.source}; {columns}")
    places = [known.index(name) for name in names]
    categories = category_of = None
    if data.categories is not None and data.category_of is not None:
        parts = [data.categories[data.category_of == place] for place in places]
        categories = np.concatenate([data.categories[:0], *parts])
        category_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return replace(data, x=data.x[:, places], features=np.array(names), categories=categories, category_of=category_of)
