"""The same for many: in processes of their own, where that pays."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(work: Callable[[T], R], things: Sequence[T], enough: int) -> list[R]:
    """`work` of every thing, in order; from `enough` things on in a process for every core, which start in a second."""
    cores = os.cpu_count() or 1
    if cores == 1 or len(things) < enough:
        return [work(thing) for thing in things]
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=min(cores, len(things)))(delayed(work)(thing) for thing in things))
