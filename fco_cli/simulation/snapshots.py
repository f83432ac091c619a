"""Snapshots of the model during a run (`record_path=true`), for the animations of the report."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Array

LARGEST = 2**20  # bytes of all snapshots of a run
MOST = 40  # largest number of snapshots

Snapshots = dict[int, Array]  # round -> model [P]


def as_snapshot(model: Array) -> Array:
    """Return the model in half precision, which is enough for a plot."""
    with np.errstate(over="ignore"):
        return model.astype(np.float16)


def snapshot_rounds(rounds: int, every: int, size: int) -> frozenset[int]:
    """Return the evaluated rounds to keep: the first, the last, and more in the early than in the late part.

    Models change most in the first rounds, so the kth of n snapshots is at the fraction (k / n)^2 of the run.
    """
    evaluated = np.unique([*range(0, rounds, every), rounds])
    count = min(MOST, LARGEST // (size * np.dtype(np.float16).itemsize), len(evaluated))
    if count < 2:
        return frozenset()
    targets = rounds * np.linspace(0, 1, count) ** 2
    nearest = np.abs(evaluated[:, None] - targets).argmin(axis=0)
    # If several targets have the same nearest round, use the following rounds instead.
    for i in range(1, count):
        nearest[i] = max(nearest[i], nearest[i - 1] + 1)
    return frozenset(evaluated[nearest].tolist())
