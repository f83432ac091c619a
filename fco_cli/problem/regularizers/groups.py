"""Norms of whole groups of weights: they are kept or dropped together."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.regularizers.base import Regularizer, non_negative, scale, squared_length


@kernel
def shrink_length(z, threshold, out):
    """out = max(1 - threshold / |z|, 0) z: the prox of threshold * |.|_2."""
    length = np.sqrt(squared_length(z))
    factor = 0.0 if length <= threshold else 1.0 - threshold / length
    scale(z, z.dtype.type(factor), out)


@kernel
def direction(w, strength, out):
    """out = strength * w / |w|; 0 at 0, the smallest subgradient."""
    length = np.sqrt(squared_length(w))
    scale(w, w.dtype.type(0.0 if length == 0 else strength / length), out)


@dataclass(kw_only=True)
class L2Norm(Regularizer):
    """psi(w) = strength * |w|_2, not squared: it drops a whole block or shrinks it."""

    strength: float
    name: str = "l2_norm"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * np.sqrt(squared_length(w))

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        if t * psi.strength > 0:
            shrink_length(z, t * psi.strength, out)
        else:
            copy(z, out)  # also where the square of a tiny length is 0

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        direction(w, psi.strength, out)


@dataclass(kw_only=True)
class GroupLasso(Regularizer):
    """psi(w) = strength * sum over groups g of |w_g|_2; a group is `group_size` weights in a row."""

    strength: float
    group_size: int
    name: str = "group_lasso"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        require(self.group_size >= 1, "regularizer.group_size", self.group_size, "a whole number >= 1")

    @property
    def kind(self) -> str:
        """Runs with other groups have their own stack, for each size must fit the blocks."""
        return f"{self.name}({self.group_size})"

    def check(self, shape: tuple[int, ...]) -> None:
        divides = prod(shape) % self.group_size == 0
        require(divides, "regularizer.group_size", self.group_size, f"a divisor of {prod(shape)}, the block's size")

    @staticmethod
    @kernel
    def value(w, psi, block):
        size, total = int(psi.group_size), 0.0
        for low in range(0, w.shape[0], size):
            total += np.sqrt(squared_length(w[low : low + size]))
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        size = int(psi.group_size)
        if t * psi.strength <= 0:
            copy(z, out)
            return
        for low in range(0, z.shape[0], size):
            shrink_length(z[low : low + size], t * psi.strength, out[low : low + size])

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        size = int(psi.group_size)
        for low in range(0, w.shape[0], size):
            direction(w[low : low + size], psi.strength, out[low : low + size])
