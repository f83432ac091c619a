"""Federated lasso for sparse feature recovery (section 5.1 and appendix B.2 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.tasks.metrics import sparse_recovery
from fco_cli.tasks.synthetic import SyntheticRegression

THRESHOLD = 1e-2  # smaller weights count as zero


@dataclass(kw_only=True)
class Lasso(SyntheticRegression):
    """Lasso whose true weights are `ones` ones followed by zeros."""

    name: str = "lasso"
    dimension: int
    ones: int

    main_metric = "f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimension >= 1, "task.dimension", self.dimension, "a whole number >= 1")
        require(0 <= self.ones <= self.dimension, "task.ones", self.ones, f"from 0 to the dimension, {self.dimension}")

    @property
    def features(self) -> int:
        return self.dimension

    def true_weights(self) -> Array:
        return np.repeat([1.0, 0.0], [self.ones, self.dimension - self.ones])

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        return sparse_recovery(w, problem.truth[:-1], THRESHOLD)
