"""Federated low-rank matrix estimation (section 5.2 and appendix B.3 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.tasks.metrics import rank
from fco_cli.tasks.synthetic import SyntheticRegression

THRESHOLD = 1e-2  # smaller singular values count as zero


@dataclass(kw_only=True)
class Nuclear(SyntheticRegression):
    """Matrix estimation whose true matrix is diagonal, with `rank` ones followed by zeros."""

    name: str = "nuclear"
    dimension: int  # of the square matrix
    rank: int

    main_metric = "rank"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimension >= 1, "task.dimension", self.dimension, "a whole number >= 1")
        require(0 <= self.rank <= self.dimension, "task.rank", self.rank, f"from 0 to the dimension, {self.dimension}")

    @property
    def features(self) -> int:
        return self.dimension**2

    def true_weights(self) -> Array:
        return np.diag(np.repeat([1.0, 0.0], [self.rank, self.dimension - self.rank]))

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        matrices = problem.layout.view(w, "weights")
        return {
            "rank": rank(matrices, THRESHOLD),
            "recovery_error": np.linalg.norm(w[:, :-1] - problem.truth[:-1], axis=1),
        }
