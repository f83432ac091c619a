"""Separable penalties: none, l1, elastic net, l2 squared. A factor for every weight says how much of psi it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.regularizers.base import Regularizer, non_negative, scale
from fco_cli.problem.regularizers.features import by_feature

MAPPING = "null or a number for features by their names, such as {age: 0, sex: 0.5}"


@kernel
def soft_threshold(z, threshold, shrink, out):
    """out = shrink * sign(z) max(|z| - threshold, 0): z minus what of it lies within the threshold; NaN stays NaN."""
    for i in range(z.shape[0]):
        out[i] = shrink * (z[i] - min(max(z[i], -threshold), threshold))


@kernel
def soft_threshold_each(z, threshold, factors, out):
    """The same with the threshold factors[i] * threshold for entry i."""
    for i in range(z.shape[0]):
        bound = factors[i] * threshold
        out[i] = z[i] - min(max(z[i], -bound), bound)


@kernel
def shrink_each(z, amount, factors, out):
    """out_i = z_i / (1 + factors[i] * amount)."""
    for i in range(z.shape[0]):
        out[i] = z[i] / (1 + factors[i] * amount)


@kernel
def weighted_absolute_sum(w, factors):
    total = 0.0
    for i in range(w.shape[0]):
        total += factors[i] * abs(w[i])
    return total


@kernel
def weighted_squared_length(w, factors):
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
class Weighted(Regularizer):
    """strength * sum_i factor_i (something of w_i); `factors` has those that are not 1, by the features' names."""

    strength: float
    factors: Any = None  # such as {age: 0}: never penalized
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        require(self.factors is None or isinstance(self.factors, dict), "regularizer.factors", self.factors, MAPPING)
        self.factors = {str(feature): factor for feature, factor in (self.factors or {}).items()}
        for feature, factor in self.factors.items():
            number = isinstance(factor, int | float) and 0 <= factor < np.inf
            require(number, f"regularizer.factors.{feature}", factor, "a number >= 0")

    @property
    def kind(self) -> str:
        """Runs with other factors have their own stack."""
        given = ", ".join(f"{feature}={factor:g}" for feature, factor in sorted(self.factors.items()))
        return f"{self.name}({given})" if given else self.name

    def each(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        return by_feature("regularizer.factors", self.factors, layout, features, other=1.0)


@dataclass(kw_only=True)
class L1(Weighted):
    """psi(w) = strength * sum_i factor_i |w_i|."""

    name: str = "l1"
    dominates_two_norm = True

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * weighted_absolute_sum(w, block.each)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold_each(z, z.dtype.type(t * psi.strength), block.each, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * block.each[i] * np.sign(w[i])  # 0 at 0: the smallest subgradient


@dataclass(kw_only=True)
class ElasticNet(Weighted):
    """psi(w) = sum_i factor_i (strength |w_i| + l2_strength / 2 w_i^2)."""

    l2_strength: float
    name: str = "elastic_net"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        super().__post_init__()
        non_negative("l2_strength", self.l2_strength)

    def curvature(self, numbers: Numbers, each: Array) -> Array:
        return numbers["l2_strength"][0] * each

    @staticmethod
    @kernel
    def value(w, psi, block):
        lengths = psi.strength * weighted_absolute_sum(w, block.each)
        return lengths + psi.l2_strength / 2 * weighted_squared_length(w, block.each)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold_each(z, z.dtype.type(t * psi.strength), block.each, out)
        shrink_each(out, z.dtype.type(t * psi.l2_strength), block.each, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = block.each[i] * (psi.strength * np.sign(w[i]) + psi.l2_strength * w[i])


@dataclass(kw_only=True)
class L2Squared(Weighted):
    """psi(w) = (strength / 2) * sum_i factor_i w_i^2."""

    name: str = "l2_squared"

    def curvature(self, numbers: Numbers, each: Array) -> Array:
        return numbers["strength"][0] * each

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength / 2 * weighted_squared_length(w, block.each)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        shrink_each(z, z.dtype.type(t * psi.strength), block.each, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * block.each[i] * w[i]
