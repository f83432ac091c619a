"""Separable penalties: none, l1, elastic net, l2 squared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, non_negative, scale, squared_length


@kernel
def soft_threshold(z, threshold, shrink, out):
    """out = shrink * sign(z) max(|z| - threshold, 0): z minus what of it lies within the threshold; NaN stays NaN."""
    for i in range(z.shape[0]):
        out[i] = shrink * (z[i] - min(max(z[i], -threshold), threshold))


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
class L1(Regularizer):
    """psi(w) = strength * |w|_1."""

    strength: float
    name: str = "l1"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * absolute_sum(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold(z, z.dtype.type(t * psi.strength), z.dtype.type(1), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * np.sign(w[i])  # 0 at 0: the smallest subgradient


@dataclass(kw_only=True)
class ElasticNet(Regularizer):
    """psi(w) = strength * |w|_1 + (l2_strength / 2) * |w|_2^2."""

    strength: float
    l2_strength: float
    name: str = "elastic_net"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("l2_strength", self.l2_strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * absolute_sum(w) + psi.l2_strength / 2 * squared_length(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold(z, z.dtype.type(t * psi.strength), z.dtype.type(1 / (1 + t * psi.l2_strength)), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * np.sign(w[i]) + psi.l2_strength * w[i]


@dataclass(kw_only=True)
class L2Squared(Regularizer):
    """psi(w) = (strength / 2) * |w|_2^2."""

    strength: float
    name: str = "l2_squared"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength / 2 * squared_length(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        scale(z, z.dtype.type(1 / (1 + t * psi.strength)), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        scale(w, w.dtype.type(psi.strength), out)
