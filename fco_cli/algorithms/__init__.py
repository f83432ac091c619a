"""How it is optimized: one file per family of algorithms, each of which reads like its paper's listing."""

from __future__ import annotations

import functools

from fco_cli.algorithms.protocol import Algorithm
from fco_cli.algorithms.rounds import Cohort, State, Varying
from fco_cli.problem.registry import members


@functools.cache
def all_algorithms() -> dict[str, type[Algorithm]]:
    """Every algorithm in this folder by name; a new file needs no list to be added to."""
    return members(Algorithm, __name__)


__all__ = ["Algorithm", "Cohort", "State", "Varying", "all_algorithms"]
