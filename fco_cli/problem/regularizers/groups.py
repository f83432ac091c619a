"""Norms of whole groups of weights: they are kept or dropped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.files import pairs_from
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.norms import squared_length
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.regularizers.base import Regularizer, non_negative, scale
from fco_cli.problem.regularizers.features import by_feature


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
    dominates_two_norm = True

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


@kernel
def squared_lengths(w, groups, size):
    """Of every group, times its size: groups[i] is the group of weight i; a size is 1 where all have the same."""
    most = 0
    for i in range(w.shape[0]):
        most = max(most, int(groups[i]))
    totals, sizes = np.zeros(most + 1), np.zeros(most + 1)
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        totals[int(groups[i])] += entry * entry
        sizes[int(groups[i])] += 1
    for g in range(most + 1):
        sizes[g] = 1 if size > 0 else sizes[g]
    return totals, sizes


@dataclass(kw_only=True)
class GroupLasso(Regularizer):
    """psi(w) = strength * sum over groups g of |w_g|_2; a group is `group_size` weights in a row.

    Or `groups` says to which group a feature belongs, in a mapping or a CSV file of two columns, feature and group;
    groups then have unequal sizes n_g, and psi(w) = strength * sum_g sqrt(n_g) |w_g|_2: none is favored for its size.
    """

    strength: float
    group_size: int
    groups: Any = None
    name: str = "group_lasso"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        if self.groups is None:
            require(self.group_size >= 1, "regularizer.group_size", self.group_size, "a whole number >= 1")
            return
        self.group_size = 0
        if not isinstance(self.groups, dict):
            self.groups = pairs_from(Path(str(self.groups)), "regularizer.groups", "feature,group")
        self.groups = {str(feature): str(group) for feature, group in self.groups.items()}

    @property
    def kind(self) -> str:
        """Runs with other groups have their own stack."""
        return f"{self.name}({self.group_size or sorted(self.groups.items())})"

    def check(self, shape: tuple[int, ...]) -> None:
        if self.groups is None:
            divides = prod(shape) % self.group_size == 0
            require(divides, "regularizer.group_size", self.group_size, f"a divisor of {prod(shape)}, the block's size")

    def each(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        """The number of its group."""
        if self.groups is None:
            starts = layout.table[:, 0]
            places = np.arange(layout.size) - np.repeat(starts, np.diff([*starts, layout.size]))
            return (places // self.group_size).astype(float)
        numbers = {group: place for place, group in enumerate(sorted(set(self.groups.values())))}
        given = {feature: numbers[group] for feature, group in self.groups.items()}
        found = by_feature("regularizer.groups", given, layout, features, other=-1)
        if (outside := np.flatnonzero((found < 0) & layout.regularized)).size:
            name = f"x{outside[0]}" if features is None else features[outside[0] % len(features)]
            raise UserError(f"regularizer.groups: feature {name!r} is in no group; every feature needs one")
        return np.maximum(found, 0)

    @staticmethod
    @kernel
    def value(w, psi, block):
        lengths, sizes = squared_lengths(w, block.each, psi.group_size)
        total = 0.0
        for g in range(lengths.shape[0]):
            total += np.sqrt(sizes[g] * lengths[g])
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Every group is shortened by t * strength, or dropped."""
        if t * psi.strength <= 0:
            copy(z, out)
            return
        lengths, sizes = squared_lengths(z, block.each, psi.group_size)
        for g in range(lengths.shape[0]):
            threshold, length = t * psi.strength * np.sqrt(sizes[g]), np.sqrt(lengths[g])
            lengths[g] = 0.0 if length <= threshold else 1.0 - threshold / length
        for i in range(z.shape[0]):
            out[i] = z.dtype.type(lengths[int(block.each[i])]) * z[i]

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        lengths, sizes = squared_lengths(w, block.each, psi.group_size)
        for i in range(w.shape[0]):
            g = int(block.each[i])
            out[i] = 0.0 if lengths[g] == 0 else psi.strength * np.sqrt(sizes[g]) * (w[i] / np.sqrt(lengths[g]))
