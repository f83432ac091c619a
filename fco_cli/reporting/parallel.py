"""Parallel map over processes, for inputs large enough to pay for their start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(function: Callable[[T], R], items: Sequence[T], min_items: int) -> list[R]:
    """Return `function` of every item, in order; use one process per core from `min_items` items on.

    Starting the processes takes about a second.
    """
    cores = os.cpu_count() or 1
    if cores == 1 or len(items) < min_items:
        return [function(item) for item in items]
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=min(cores, len(items)))(delayed(function)(item) for item in items))
