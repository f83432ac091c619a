"""Synthetic regressions whose true weights have the structure that a regularizer promotes.

The features are those of appendix B of the paper (synthetic.py); true weights and metrics differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.tasks.metrics import density, support_recovery
from fco_cli.tasks.synthetic import SyntheticRegression

THRESHOLD = 1e-2  # smaller weights, jumps and groups count as zero


@dataclass(kw_only=True)
class ShapedRegression(SyntheticRegression):
    """Base class of regressions with structured true weights of length `dimension`."""

    dimension: int  # number of weights

    main_metric = "recovery_error"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.dimension >= 1, "task.dimension", self.dimension, "a whole number >= 1")

    @property
    def features(self) -> int:
        return self.dimension

    def metrics(self, problem: Problem, w: Array) -> dict[str, Array]:
        assert problem.truth is not None
        estimate, truth = w[:, :-1], problem.truth[:-1]
        return {"recovery_error": np.linalg.norm(estimate - truth, axis=1)} | self.shape_metrics(estimate, truth)

    def shape_metrics(self, estimate: Array, truth: Array) -> dict[str, Array]:
        """Return metrics of the structure of weights [J, d]."""
        raise NotImplementedError

    def _within_dimension(self, key: str, count: int) -> None:
        require(1 <= count <= self.dimension, f"task.{key}", count, f"from 1 to the dimension, {self.dimension}")


@dataclass(kw_only=True)
class Mixture(ShapedRegression):
    """Regression with weights on the simplex: `active` non-zeros in the proportions active : active - 1 : ... : 1."""

    name: str = "mixture"
    active: int  # number of weights that are not zero in the truth

    def __post_init__(self) -> None:
        super().__post_init__()
        self._within_dimension("active", self.active)

    def true_weights(self) -> Array:
        weights = np.zeros(self.dimension)
        weights[: self.active] = np.arange(self.active, 0, -1)
        return weights / weights.sum()

    def shape_metrics(self, estimate: Array, truth: Array) -> dict[str, Array]:
        return {
            "total_variation_distance": np.abs(estimate - truth).sum(axis=1) / 2,
            "infeasibility": np.abs(estimate.sum(axis=1) - 1) + np.maximum(-estimate, 0).sum(axis=1),
        }


@dataclass(kw_only=True)
class Piecewise(ShapedRegression):
    """Regression with piecewise constant weights: `pieces` segments of equal length."""

    name: str = "piecewise"
    pieces: int  # number of segments

    def __post_init__(self) -> None:
        super().__post_init__()
        self._within_dimension("pieces", self.pieces)

    def true_weights(self) -> Array:
        heights = np.array([0.0, 1.0, -0.5, 0.5, -1.0])
        piece = np.arange(self.dimension) * self.pieces // self.dimension
        return heights[piece % len(heights)]

    def shape_metrics(self, estimate: Array, truth: Array) -> dict[str, Array]:
        jumps = np.abs(np.diff(estimate, axis=1)) > THRESHOLD
        recovery = support_recovery(jumps, np.diff(truth) != 0)
        return {"jumps": jumps.sum(axis=1)} | {f"jump_{name}": values for name, values in recovery.items()}


@dataclass(kw_only=True)
class MonotoneRegression(ShapedRegression):
    """Regression with nondecreasing weights: constant, increasing, constant."""

    name: str = "monotone"

    def true_weights(self) -> Array:
        return np.clip(np.linspace(-2, 2, self.dimension), -1, 1)

    def shape_metrics(self, estimate: Array, truth: Array) -> dict[str, Array]:
        steps = np.diff(estimate, axis=1)
        return {"falls": (steps < 0).sum(axis=1), "largest_fall": np.maximum(-steps, 0).max(axis=1)}


@dataclass(kw_only=True)
class GroupSparse(ShapedRegression):
    """Regression with group-sparse weights: the first `active` groups of `group_size` weights are 1, the others 0."""

    name: str = "group_sparse"
    group_size: int  # weights per group
    active: int  # groups whose weights are not zero in the truth

    def __post_init__(self) -> None:
        super().__post_init__()
        self._within_dimension("group_size", self.group_size)
        divides = self.dimension % self.group_size == 0
        require(divides, "task.group_size", self.group_size, f"a divisor of the dimension, {self.dimension}")
        groups = self.dimension // self.group_size
        require(0 <= self.active <= groups, "task.active", self.active, f"from 0 to the number of groups, {groups}")

    def true_weights(self) -> Array:
        ones = self.active * self.group_size
        return np.repeat([1.0, 0.0], [ones, self.dimension - ones])

    def shape_metrics(self, estimate: Array, truth: Array) -> dict[str, Array]:
        norms = np.linalg.norm(estimate.reshape(len(estimate), -1, self.group_size), axis=2)
        support = norms > THRESHOLD
        recovery = support_recovery(support, np.linalg.norm(truth.reshape(-1, self.group_size), axis=1) > 0)
        return {f"group_{name}": values for name, values in recovery.items()} | {"group_density": density(support)}
