"""Separable penalties: none, l1, elastic net, l2 squared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, non_negative, scale, squared_length


@kernel
def soft_threshold(z, threshold, shrink, out):
    """out = shrink * sign(z) max(|z| - threshold, 0)."""
    zero = z.dtype.type(0)
    for i in range(z.shape[0]):
        above = z[i] - threshold if z[i] > threshold else zero * z[i]  # so that NaN stays NaN
        out[i] = shrink * (z[i] + threshold if z[i] < -threshold else above)


@dataclass(kw_only=True)
class NoRegularizer(Regularizer):
    """psi(w) = 0."""

    name: str = "none"

    @staticmethod
    @kernel
    def value(w, p, shape):
        return 0.0

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        copy(z, out)

    @staticmethod
    @kernel
    def subgradient(w, p, shape, out):
        scale(w, w.dtype.type(0), out)


@dataclass(kw_only=True)
class L1(Regularizer):
    """psi(w) = strength * |w|_1."""

    strength: float
    name: str = "l1"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, p, shape):
        return p[0] * absolute_sum(w)

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        soft_threshold(z, z.dtype.type(t * p[0]), z.dtype.type(1), out)

    @staticmethod
    @kernel
    def subgradient(w, p, shape, out):
        for i in range(w.shape[0]):
            out[i] = p[0] * np.sign(w[i])  # 0 at 0: the smallest subgradient


@dataclass(kw_only=True)
class ElasticNet(Regularizer):
    """psi(w) = strength * |w|_1 + (l2_strength / 2) * |w|_2^2."""

    strength: float
    l2_strength: float
    name: str = "elastic_net"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("l2_strength", self.l2_strength)

    @staticmethod
    @kernel
    def value(w, p, shape):
        return p[0] * absolute_sum(w) + p[1] / 2 * squared_length(w)

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        soft_threshold(z, z.dtype.type(t * p[0]), z.dtype.type(1 / (1 + t * p[1])), out)

    @staticmethod
    @kernel
    def subgradient(w, p, shape, out):
        for i in range(w.shape[0]):
            out[i] = p[0] * np.sign(w[i]) + p[1] * w[i]


@dataclass(kw_only=True)
class L2Squared(Regularizer):
    """psi(w) = (strength / 2) * |w|_2^2."""

    strength: float
    name: str = "l2_squared"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, p, shape):
        return p[0] / 2 * squared_length(w)

    @staticmethod
    @kernel
    def prox(z, t, p, shape, out):
        scale(z, z.dtype.type(1 / (1 + t * p[0])), out)

    @staticmethod
    @kernel
    def subgradient(w, p, shape, out):
        scale(w, w.dtype.type(p[0]), out)
