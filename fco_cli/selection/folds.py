"""Folds of a cross-validation, as masks over the training rows; a function of the seed alone.

A client deals its own rows, by (seed, its number): no other client's rows matter to it.
"""

from __future__ import annotations

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import FOLDS, generator


def folds_of(data: ClientData, folds: int, by: str, classes: bool, seed: int, draw: int = 0) -> Array:
    """Which fold holds each row out: [N]. With `classes` every class is dealt by itself; `draw` tells draws apart."""
    if by == "rows":
        require(folds <= len(data.y), "path.folds", folds, f"at most {len(data.y)}, the rows that train")
        sources = [generator(seed, FOLDS, (draw << 24) + m + 1) for m in range(data.clients)]
        members = np.concatenate([_dealt(data, m, folds, classes, random) for m, random in enumerate(sources)])
    else:
        require(data.clients >= 2, "path.by", by, "rows: there is one client only")
        if by == "each_client":
            folds = data.clients
        require(folds <= data.clients, "path.folds", folds, f"at most {data.clients}, the clients that train")
        place = np.empty(data.clients, dtype=np.int64)
        place[generator(seed, FOLDS, draw << 24).permutation(data.clients)] = np.arange(data.clients)
        members = (place % folds if by == "clients" else np.arange(data.clients))[data.owners]
    sizes = np.bincount(members, minlength=folds)
    require(sizes.min() > 0, "path.folds", folds, "fewer: one of them would hold no row")
    return members


def _dealt(data: ClientData, m: int, folds: int, classes: bool, random: np.random.Generator) -> Array:
    """The folds of one client's rows: in turn, from a random one on, rows of a class together and in random order."""
    y = data.y[data.offsets[m] : data.offsets[m + 1]]
    order = np.lexsort((random.random(len(y)), y if classes else np.zeros(len(y))))
    folded = np.empty(len(y), dtype=np.int64)
    folded[order] = (random.integers(folds) + np.arange(len(y))) % folds
    return folded
