"""Numbers by name, for people and for kernels: records that both read as `psi.strength`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fco_cli.problem.layout import Array


def records(numbers: Mapping[str, float]) -> Array:
    """One record [1] with these fields; those of many jobs are put together with np.concatenate."""
    names = list(numbers) or ["none"]  # a record needs a field
    made = np.zeros(1, dtype=[(name, float) for name in names]).view(np.recarray)
    for name, value in numbers.items():
        made[name] = value
    return made
