"""Optimization algorithms, one module per family."""

from __future__ import annotations

from fco_cli.algorithms.protocol import Algorithm
from fco_cli.algorithms.rounds import Cohort, State, Varying
from fco_cli.problem.registry import Registry

all_algorithms: Registry[Algorithm] = Registry("algo", Algorithm, __name__)

__all__ = ["Algorithm", "Cohort", "State", "Varying", "all_algorithms"]
