"""Separable penalties with penalty factors per weight: none, l1, elastic net, l2 squared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.layout import Array, Layout, Numbers
from fco_cli.problem.regularizers.base import Regularizer, expand_by_feature, non_negative, scale, stack_scalar_form

FACTORS_FORMAT = "null or a mapping of feature names to numbers, such as {age: 0, sex: 0.5}"


@kernel
def soft_threshold(z, threshold, shrink, out):
    """Write shrink * sign(z) max(|z| - threshold, 0) to out; NaN stays NaN."""
    for i in range(z.shape[0]):
        out[i] = shrink * (z[i] - min(max(z[i], -threshold), threshold))


@kernel
def soft_threshold_each(z, threshold, factors, out):
    """Apply soft thresholding with the threshold factors[i] * threshold for entry i."""
    for i in range(z.shape[0]):
        bound = factors[i] * threshold
        out[i] = z[i] - min(max(z[i], -bound), bound)


@kernel
def shrink_each(z, amount, factors, out):
    """Write z[i] / (1 + factors[i] * amount) to out[i]."""
    for i in range(z.shape[0]):
        out[i] = z[i] / (1 + factors[i] * amount)


@kernel
def weighted_absolute_sum(w, factors):
    """Return sum_i factors[i] |w_i|."""
    total = 0.0
    for i in range(w.shape[0]):
        total += factors[i] * abs(w[i])
    return total


@kernel
def weighted_squared_length(w, factors):
    """Return sum_i factors[i] w_i^2, summed in float64."""
    total = 0.0
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        total += factors[i] * (entry * entry)
    return total


@dataclass(kw_only=True)
class NoRegularizer(Regularizer):
    """psi(w) = 0."""

    name: str = "none"
    separable: ClassVar[bool] = True

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        zeros = np.zeros((len(numbers), len(per_weight)))
        return stack_scalar_form(zeros, zeros)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return 0.0

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        copy(z, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        scale(w, w.dtype.type(0), out)


@dataclass(kw_only=True)
class WeightedPenalty(Regularizer):
    """Base class of penalties strength * sum_i factor_i f(w_i); factors are 1 for features not in `factors`."""

    strength: float  # factor of the penalty, at least 0
    factors: Any = None  # for example {age: 0}: age is not penalized
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        require(
            self.factors is None or isinstance(self.factors, dict), "regularizer.factors", self.factors, FACTORS_FORMAT
        )
        self.factors = {str(feature): factor for feature, factor in (self.factors or {}).items()}
        for feature, factor in self.factors.items():
            is_valid = isinstance(factor, int | float) and 0 <= factor < np.inf
            require(is_valid, f"regularizer.factors.{feature}", factor, "a number >= 0")

    @property
    def kind(self) -> str:
        """Key of the stack: runs with different factors do not share one."""
        given = ", ".join(f"{feature}={factor:g}" for feature, factor in sorted(self.factors.items()))
        return f"{self.name}({given})" if given else self.name

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        return expand_by_feature("regularizer.factors", self.factors, layout, features, other=1.0)


@dataclass(kw_only=True)
class L1(WeightedPenalty):
    """psi(w) = strength * sum_i factor_i |w_i|."""

    name: str = "l1"
    dominates_two_norm = True

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        return stack_scalar_form(np.outer(numbers["strength"], per_weight), np.zeros(1))

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * weighted_absolute_sum(w, block.per_weight)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold_each(z, z.dtype.type(t * psi.strength), block.per_weight, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * block.per_weight[i] * np.sign(w[i])  # at 0: the subgradient of least norm


@dataclass(kw_only=True)
class ElasticNet(WeightedPenalty):
    """psi(w) = sum_i factor_i (strength |w_i| + l2_strength / 2 w_i^2)."""

    l2_strength: float  # factor of the squared l2 norm, at least 0
    name: str = "elastic_net"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative("l2_strength", self.l2_strength)

    def curvature(self, numbers: Numbers, per_weight: Array) -> Array:
        return numbers["l2_strength"][0] * per_weight

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        return stack_scalar_form(*(np.outer(numbers[key], per_weight) for key in ("strength", "l2_strength")))

    @staticmethod
    @kernel
    def value(w, psi, block):
        l1_part = psi.strength * weighted_absolute_sum(w, block.per_weight)
        return l1_part + psi.l2_strength / 2 * weighted_squared_length(w, block.per_weight)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold_each(z, z.dtype.type(t * psi.strength), block.per_weight, out)
        shrink_each(out, z.dtype.type(t * psi.l2_strength), block.per_weight, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = block.per_weight[i] * (psi.strength * np.sign(w[i]) + psi.l2_strength * w[i])


@dataclass(kw_only=True)
class L2Squared(WeightedPenalty):
    """psi(w) = (strength / 2) * sum_i factor_i w_i^2."""

    name: str = "l2_squared"

    def curvature(self, numbers: Numbers, per_weight: Array) -> Array:
        return numbers["strength"][0] * per_weight

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        b = np.outer(numbers["strength"], per_weight)
        return stack_scalar_form(np.zeros_like(b), b)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength / 2 * weighted_squared_length(w, block.per_weight)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        shrink_each(z, z.dtype.type(t * psi.strength), block.per_weight, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * block.per_weight[i] * w[i]
