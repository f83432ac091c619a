"""Optimization algorithms, one module per family."""

from __future__ import annotations

import functools

from fco_cli.algorithms.protocol import Algorithm
from fco_cli.algorithms.rounds import Cohort, State, Varying
from fco_cli.problem.registry import members


@functools.cache
def all_algorithms() -> dict[str, type[Algorithm]]:
    """Return the algorithms of this package by name; classes in new modules are registered automatically."""
    return members(Algorithm, __name__)


__all__ = ["Algorithm", "Cohort", "State", "Varying", "all_algorithms"]
