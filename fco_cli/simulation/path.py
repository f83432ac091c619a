"""Snapshots on the way: with `record_path=true` a run keeps its model at a few rounds, for a report that moves."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array

LARGEST = 2**20  # bytes that all snapshots of a run take
MOST = 40  # snapshots

Snapshots = dict[int, Array]  # round -> model [P]


def as_snapshot(model: Array) -> Array:
    """Half precision is enough to look at."""
    with np.errstate(over="ignore"):
        return model.astype(np.float16)


def snapshot_rounds(rounds: int, every: int, size: int) -> frozenset[int]:
    """The rounds to keep of those that are evaluated: first, last, and between them close together early on.

    Most of the way is gone in the first rounds, so the kth of n lies at (k / n)^2 of the run.
    """
    evaluated = np.unique([*range(0, rounds, every), rounds])
    count = min(MOST, LARGEST // (size * np.dtype(np.float16).itemsize), len(evaluated))
    if count < 2:
        return frozenset()
    wanted = rounds * np.linspace(0, 1, count) ** 2
    nearest = np.abs(evaluated[:, None] - wanted).argmin(axis=0)
    # Where several want the same round they take the next ones: early rounds are then kept one by one.
    for i in range(1, count):
        nearest[i] = max(nearest[i], nearest[i - 1] + 1)
    return frozenset(evaluated[nearest].tolist())
