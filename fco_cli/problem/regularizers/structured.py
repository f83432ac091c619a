"""Structured penalties: group lasso, total variation of a sequence, and the fused lasso.

The group lasso is a sum of l2 norms of groups: the weights of a group are all zero or all non-zero. Total variation and
the fused lasso use the taut string algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.products import squared_length
from fco_cli.problem.layout import Array, Layout, Numbers
from fco_cli.problem.regularizers.base import Regularizer, absolute_sum, expand_by_feature, non_negative, scale
from fco_cli.problem.regularizers.penalties import soft_threshold
from fco_cli.typed_files import read_pairs


@kernel
def block_soft_threshold(z, threshold, out):
    """Write max(1 - threshold / |z|, 0) z, the prox of threshold * |.|_2, to out."""
    length = np.sqrt(squared_length(z))
    factor = 0.0 if length <= threshold else 1.0 - threshold / length
    scale(z, z.dtype.type(factor), out)


@kernel
def norm_subgradient(w, strength, out):
    """Write strength * w / |w| to out; at 0 the subgradient of least norm, 0."""
    length = np.sqrt(squared_length(w))
    scale(w, w.dtype.type(0.0 if length == 0 else strength / length), out)


@dataclass(kw_only=True)
class L2Norm(Regularizer):
    """The l2 norm of a block: psi(w) = strength * |w|_2, not squared; the prox shrinks a block or sets it to 0."""

    strength: float  # factor of the penalty, at least 0
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
            block_soft_threshold(z, t * psi.strength, out)
        else:
            copy(z, out)  # exact even where the squared norm underflows to 0

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        norm_subgradient(w, psi.strength, out)


@kernel
def squared_group_norms(w, groups, size):
    """Return the squared l2 norm and the scaling factor of each group; groups[i] is the group of weight i.

    The factor is 1 for groups of equal size (`size` > 0), otherwise the number of weights in the group.
    """
    last = 0
    for i in range(w.shape[0]):
        last = max(last, int(groups[i]))
    totals, sizes = np.zeros(last + 1), np.zeros(last + 1)
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        totals[int(groups[i])] += entry * entry
        sizes[int(groups[i])] += 1
    for g in range(last + 1):
        sizes[g] = 1 if size > 0 else sizes[g]
    return totals, sizes


@dataclass(kw_only=True)
class GroupLasso(Regularizer):
    """Group lasso: psi(w) = strength * sum_g |w_g|_2, where a group is `group_size` consecutive weights.

    With `group_size` 0 a group is a row of its block: the weights of one output channel or unit of a network.
    Alternatively, `groups` assigns features to groups, as a mapping or a CSV file with the columns feature and group.
    Groups may then have different sizes n_g, and psi(w) = strength * sum_g sqrt(n_g) |w_g|_2.
    """

    strength: float  # factor of the penalty, at least 0
    group_size: int  # consecutive weights of a group
    groups: Any = None  # features to groups: a mapping or a CSV file; null: by group_size
    name: str = "group_lasso"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        if self.groups is None:
            allowed = "a whole number >= 1, or 0 for the rows of a block"
            require(self.group_size >= 0, "regularizer.group_size", self.group_size, allowed)
            return
        self.group_size = 0
        if not isinstance(self.groups, dict):
            self.groups = read_pairs(Path(str(self.groups)), "regularizer.groups", "feature,group")
        self.groups = {str(feature): str(group) for feature, group in self.groups.items()}

    @property
    def kind(self) -> str:
        """Key of the stack: runs with different groups do not share one."""
        return f"{self.name}({self.group_size if self.groups is None else sorted(self.groups.items())})"

    def check(self, shape: tuple[int, ...]) -> None:
        if self.groups is None and self.group_size:
            size = prod(shape)
            is_divisor = size % self.group_size == 0
            require(is_divisor, "regularizer.group_size", self.group_size, f"a divisor of {size}, the block size")

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        """Return the group index of each weight."""
        if self.groups is None:
            starts, sizes = layout.table[:, 0], np.diff(np.append(layout.table[:, 0], layout.size))
            positions = np.arange(layout.size) - np.repeat(starts, sizes)
            return (positions // (self.group_size or np.repeat(layout.table[:, 3], sizes))).astype(float)
        indices = {group: index for index, group in enumerate(sorted(set(self.groups.values())))}
        given = {feature: indices[group] for feature, group in self.groups.items()}
        assigned = expand_by_feature("regularizer.groups", given, layout, features, other=-1)
        if (missing := np.flatnonzero((assigned < 0) & layout.regularized)).size:
            name = f"x{missing[0]}" if features is None else features[missing[0] % len(features)]
            raise UserError(f"regularizer.groups: feature {name!r} has no group; assign every feature to a group")
        return np.maximum(assigned, 0)

    def block_form(self, numbers: Numbers, per_weight: Array) -> tuple[Array, Array]:
        labels = per_weight.astype(int)
        sizes = np.bincount(labels)
        return labels, numbers["strength"][0] * (np.ones(len(sizes)) if self.group_size > 0 else np.sqrt(sizes))

    @staticmethod
    @kernel
    def value(w, psi, block):
        squared_norms, sizes = squared_group_norms(w, block.per_weight, psi.group_size)
        total = 0.0
        for g in range(squared_norms.shape[0]):
            total += np.sqrt(sizes[g] * squared_norms[g])
        return psi.strength * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Apply block soft thresholding to each group, with threshold t * strength * sqrt(n_g)."""
        if t * psi.strength <= 0:
            copy(z, out)
            return
        squared_norms, sizes = squared_group_norms(z, block.per_weight, psi.group_size)
        factors = squared_norms  # overwritten in place
        for g in range(squared_norms.shape[0]):
            threshold, norm = t * psi.strength * np.sqrt(sizes[g]), np.sqrt(squared_norms[g])
            factors[g] = 0.0 if norm <= threshold else 1.0 - threshold / norm
        for i in range(z.shape[0]):
            out[i] = z.dtype.type(factors[int(block.per_weight[i])]) * z[i]

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        squared_norms, sizes = squared_group_norms(w, block.per_weight, psi.group_size)
        for i in range(w.shape[0]):
            g = int(block.per_weight[i])
            out[i] = (
                0.0 if squared_norms[g] == 0 else psi.strength * np.sqrt(sizes[g]) * (w[i] / np.sqrt(squared_norms[g]))
            )


@kernel
def total_variation(w):
    """Return sum_i |w_{i+1} - w_i|."""
    total = 0.0
    for i in range(w.shape[0] - 1):
        total += abs(w[i + 1] - w[i])
    return total


@kernel
def taut_string(z, width, out):
    """Write argmin_w width * sum_i |w_{i+1} - w_i| + |w - z|^2 / 2 to out, by the taut string algorithm.

    The result is the slopes of the shortest string through the tube of half-width `width` around the cumulative sums
    of z, with fixed ends. After a knot, the slope of the string is at least `min_slope`, to stay above the floor of
    the tube, and at most `max_slope`, to stay below its ceiling. When no slope satisfies both, the next knot is at the
    point that set the violated bound. Time is linear except on adversarial sequences.
    """
    size = z.shape[0]
    sums = np.zeros(size + 1)
    for i in range(size):
        sums[i + 1] = sums[i] + z[i]
    knot, height = 0, 0.0
    while knot < size:
        min_slope, max_slope = -np.inf, np.inf
        floor, ceiling, k = knot, knot, knot
        end, end_height = size, sums[size]
        while k < size:
            k += 1
            slack = width if k < size else 0.0
            low = (sums[k] - slack - height) / (k - knot)
            high = (sums[k] + slack - height) / (k - knot)
            if low > max_slope:  # the floor exceeds an earlier ceiling: knot at that ceiling
                end, end_height = ceiling, sums[ceiling] + width
                break
            if high < min_slope:  # the ceiling is below an earlier floor: knot at that floor
                end, end_height = floor, sums[floor] - width
                break
            if low >= min_slope:
                min_slope, floor = low, k
            if high <= max_slope:
                max_slope, ceiling = high, k
        slope = (end_height - height) / (end - knot)
        for i in range(knot, end):
            out[i] = slope
        knot, height = end, end_height


@kernel
def add_variation_subgradient(w, strength, out):
    """Add a subgradient of strength * sum_i |w_{i+1} - w_i| to out."""
    for i in range(w.shape[0] - 1):
        change = strength * np.sign(w[i + 1] - w[i])
        out[i + 1] += change
        out[i] -= change


@dataclass(kw_only=True)
class TotalVariation(Regularizer):
    """Total variation: psi(w) = strength * sum_i |w_{i+1} - w_i|; favors piecewise constant sequences."""

    strength: float  # factor of the penalty, at least 0
    name: str = "total_variation"

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * total_variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        if t * psi.strength > 0:
            taut_string(z, t * psi.strength, out)
        else:
            copy(z, out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        scale(w, w.dtype.type(0), out)
        add_variation_subgradient(w, psi.strength, out)


@dataclass(kw_only=True)
class FusedLasso(Regularizer):
    """Fused lasso: psi(w) = strength * |w|_1 + variation_strength * sum_i |w_{i+1} - w_i|."""

    strength: float  # factor of the l1 norm, at least 0
    variation_strength: float  # factor of the total variation, at least 0
    name: str = "fused_lasso"
    dominates_two_norm = True

    def __post_init__(self) -> None:
        non_negative("strength", self.strength)
        non_negative("variation_strength", self.variation_strength)

    @staticmethod
    @kernel
    def value(w, psi, block):
        return psi.strength * absolute_sum(w) + psi.variation_strength * total_variation(w)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Apply the prox of the total variation, then soft thresholding (Friedman et al., 2007)."""
        if t * psi.variation_strength > 0:
            taut_string(z, t * psi.variation_strength, out)
        else:
            copy(z, out)
        soft_threshold(out, z.dtype.type(t * psi.strength), z.dtype.type(1), out)

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            out[i] = psi.strength * np.sign(w[i])
        add_variation_subgradient(w, psi.variation_strength, out)
