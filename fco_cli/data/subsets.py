"""Tables with some of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fco_cli.data.format import FederatedData, format_list, shown
from fco_cli.data.sparse import is_sparse
from fco_cli.errors import UserError, did_you_mean


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
