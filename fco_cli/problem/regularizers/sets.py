"""Convex sets: box, linf ball, non-negative orthant, simplex, l1 and l2 balls; the prox of the l1 norm in an l1 ball.

Projections onto the l1 and l2 balls are exactly feasible, not only up to rounding: norms are summed in float64 for
vectors of any precision, and the final scaling rounds toward 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.products import two_norm
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.regularizers.base import Ball, Constraint, absolute_sum, positive, scale, stack_scalar_form
from fco_cli.problem.regularizers.penalties import soft_threshold

MAX_RELATIVE_THRESHOLD = 1e6  # relative to the total; beyond it the sum of the projection loses too many digits
SAMPLE_MIN_SIZE = 2048  # shorter vectors do not use a sample
SAMPLE_STRIDE = 17  # coprime to common layer widths, so that the sample covers all columns of a weight matrix
SUM_CHUNK = 1024  # entries summed in the precision of the vector, for speed, before they are added in float64


@kernel
def clip(z, lower, upper, out):
    """Write z clipped to [lower, upper] to out; a non-finite entry becomes NaN."""
    for i in range(z.shape[0]):
        inside = lower if z[i] < lower else z[i]
        out[i] = (upper if z[i] > upper else inside) + 0 * z[i]


@kernel
def minimizing_corner(g, lower, upper, out):
    """Write the corner of the box that minimizes <g, w> to out; the midpoint where g_i = 0."""
    for i in range(g.shape[0]):
        side = upper if g[i] < 0 else (lower + upper) / 2
        out[i] = (lower if g[i] > 0 else side) + 0 * g[i]


@kernel
def simplex_threshold(z, total):
    """Return theta with sum_i max(z_i - theta, 0) = total, by Michelot's method.

    The threshold only increases, so the set of entries above it only shrinks.
    """
    threshold, count = -np.inf, -1
    while True:
        above, larger = 0, 0.0
        for i in range(z.shape[0]):
            if z[i] > threshold:
                larger += z[i]
                above += 1
        if above == count or above == 0:
            return threshold
        count = above
        threshold = (larger - total) / count


@kernel
def positive_part_above(z, threshold, out):
    """Write max(z - threshold, 0) to out; a non-finite entry becomes NaN."""
    for i in range(z.shape[0]):
        out[i] = (0.0 if z[i] <= threshold else z[i] - threshold) + 0 * z[i]


def scalar_bounds(lower: Array, upper: Array, size: int) -> Array:
    """Return the arrays of `Regularizer.scalar_form` for bounds [J] on each of `size` weights."""
    zeros = np.zeros((len(lower), size))
    return stack_scalar_form(zeros, zeros, lower[:, None], upper[:, None])


@dataclass(kw_only=True)
class Box(Constraint):
    """Box: lower <= w_i <= upper."""

    lower: float  # smallest value of a weight
    upper: float  # largest value of a weight
    name: str = "box"
    separable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        finite = np.isfinite(self.lower) and np.isfinite(self.upper)
        is_valid = finite and self.lower < self.upper
        require(is_valid, "regularizer.upper", self.upper, f"a finite number above lower, {self.lower}")

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        return scalar_bounds(numbers["lower"], numbers["upper"], len(per_weight))

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, psi.lower, psi.upper, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        minimizing_corner(g, psi.lower, psi.upper, out)


@dataclass(kw_only=True)
class LinfBall(Ball):
    """The linf ball: |w_i| <= radius."""

    name: str = "linf_ball"
    separable: ClassVar[bool] = True

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        return scalar_bounds(-numbers["radius"], numbers["radius"], len(per_weight))

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, -psi.radius, psi.radius, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        minimizing_corner(g, -psi.radius, psi.radius, out)


@dataclass(kw_only=True)
class NonNegative(Constraint):
    """Non-negative orthant: w_i >= 0."""

    name: str = "non_negative"
    separable: ClassVar[bool] = True

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        return scalar_bounds(np.zeros(len(numbers)), np.full(len(numbers), np.inf), len(per_weight))

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        clip(z, 0.0, np.inf, out)


@dataclass(kw_only=True)
class Simplex(Constraint):
    """Simplex: w_i >= 0 and sum_i w_i = total."""

    total: float  # sum of the weights
    name: str = "simplex"

    def __post_init__(self) -> None:
        positive("total", self.total)

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        """Write max(z - theta, 0) to out, with the theta for which the sum is the total."""
        threshold = simplex_threshold(z, psi.total)
        if abs(threshold) <= MAX_RELATIVE_THRESHOLD * psi.total:
            positive_part_above(z, threshold, out)
            return
        top = z[0]
        for i in range(z.shape[0]):
            top = max(top, z[i])
        shifted = np.empty_like(z)  # z - top has the same projection
        for i in range(z.shape[0]):
            shifted[i] = z[i] - top
        positive_part_above(shifted, simplex_threshold(shifted, psi.total), out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write the minimizing vertex to out: the total at the smallest g_i, 0 at the other entries."""
        least = 0
        for i in range(g.shape[0]):
            out[i] = 0 * g[i]
            if g[i] < g[least]:
                least = i
        out[least] += psi.total


@kernel
def excess_over(z, limit):
    """Return sum_i max(|z_i| - limit, 0) and the number of positive terms; branch-free, so that it vectorizes."""
    zero = z.dtype.type(0)
    excess, above = 0.0, 0
    for low in range(0, z.shape[0], SUM_CHUNK):
        part = z[low : low + SUM_CHUNK]
        total, count = zero, np.int32(0)
        for i in range(part.shape[0]):
            over = abs(part[i]) - limit
            total += max(over, zero)
            count = np.int32(count + np.int32(over > zero))
        excess += total
        above += count
    return excess, above


@kernel
def newton_threshold(z, radius, theta):
    """Return theta with sum_i max(|z_i| - theta, 0) = radius, by Newton's method from any initial theta.

    The sum is convex, decreasing and piecewise linear in theta. A step from the right of the root lands on its
    left, and later steps do not overshoot. The root is exact when the set of entries above theta no longer changes
    (Michelot's method). After the first step, only rounding can enlarge that set.
    """
    count, falling = 0, False
    while True:
        limit = z.dtype.type(theta)
        excess, above = excess_over(z, limit)
        if above == count or above == 0 or (falling and above > count):
            return theta
        falling = count > 0
        count = above
        theta = limit + (excess - radius) / count


@kernel
def l1_ball_threshold(z, total, radius):
    """Return theta > 0 with sum_i max(|z_i| - theta, 0) = radius, for total = |z|_1 > radius.

    Expected time O(n): a sample of the entries gives the initial theta, then two or three passes over z suffice.
    """
    theta = (total - radius) / z.shape[0]  # lower bound of the root; equal to it if no entry is smaller
    if z.shape[0] >= SAMPLE_MIN_SIZE:
        sample = np.empty(z.shape[0] // SAMPLE_STRIDE, z.dtype)
        for i in range(sample.shape[0]):
            sample[i] = z[i * SAMPLE_STRIDE]
        theta = newton_threshold(sample, radius * sample.shape[0] / z.shape[0], theta)
    return newton_threshold(z, radius, theta)


@kernel
def shrink_factor(norm, radius, like):
    """Return radius / norm in the precision of the array `like`, rounded down so that the scaled vector is feasible."""
    eps = 2.3e-16 if like.itemsize == 8 else 1.2e-7
    return like.dtype.type(radius / norm * (1 - 2 * eps))


@kernel
def project_onto_l1_ball(z, radius, out):
    """Write the projection of z onto the l1 ball to out."""
    total = absolute_sum(z)
    if total <= radius:
        copy(z, out)
        return
    theta = z.dtype.type(l1_ball_threshold(z, total, radius))
    soft_threshold(z, theta, z.dtype.type(1), out)
    total = absolute_sum(out)
    if total > radius:
        soft_threshold(z, theta, shrink_factor(total, radius, z), out)


@dataclass(kw_only=True)
class L1Ball(Ball):
    """The l1 ball: |w|_1 <= radius, separately for each regularized block."""

    name: str = "l1_ball"
    bounds_two_norm = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        project_onto_l1_ball(z, psi.radius, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write the minimizing vertex to out: -radius sign(g_i) at the largest |g_i|, 0 at the other entries."""
        top = 0
        for i in range(g.shape[0]):
            out[i] = 0 * g[i]
            if abs(g[i]) > abs(g[top]):
                top = i
        out[top] -= psi.radius * np.sign(g[top])


@dataclass(kw_only=True)
class L2Ball(Ball):
    """The l2 ball: |w|_2 <= radius, separately for each regularized block."""

    name: str = "l2_ball"
    bounds_two_norm = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        norm = two_norm(z)
        scale(z, z.dtype.type(1) if norm <= psi.radius else shrink_factor(norm, psi.radius, z), out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """Write -radius g / |g| to out."""
        norm = two_norm(g)
        scale(g, g.dtype.type(0) if norm <= 1e-300 else -shrink_factor(norm, psi.radius, g), out)


@kernel
def prox_l1_with_multiplier(v, threshold, factors, multiplier, near, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| + multiplier |w - near|_1.

    Return |out - near|_1.
    """
    b, total = multiplier, 0.0
    for i in range(v.shape[0]):
        a = factors[i] * threshold
        low, high = min(near[i], 0), max(near[i], 0)
        between = v[i] - (a - b if near[i] > 0 else b - a)  # between 0 and near[i] the two slopes have opposite signs
        out[i] = min(max(between, low), high)
        if v[i] + a + b < low:
            out[i] = v[i] + a + b
        elif v[i] - a - b > high:
            out[i] = v[i] - a - b
        out[i] += 0 * v[i]  # propagate NaN and infinity
        total += abs(out[i] - near[i])
    return total


@kernel
def prox_l1_in_l1_ball(v, threshold, factors, near, radius, out):
    """out = argmin_w |w - v|^2 / 2 + threshold sum_i factors[i] |w_i| subject to |w - near|_1 <= radius.

    Bisection on the multiplier of the constraint.
    """
    if prox_l1_with_multiplier(v, threshold, factors, 0.0, near, out) <= radius:
        return
    low, high = 0.0, 0.0
    for i in range(v.shape[0]):
        high = max(high, factors[i] * threshold + abs(v[i] - near[i]))  # with this multiplier the solution is `near`
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:  # adjacent floating-point numbers, or NaN
            break
        if prox_l1_with_multiplier(v, threshold, factors, middle, near, out) > radius:
            low = middle
        else:
            high = middle
    prox_l1_with_multiplier(v, threshold, factors, high, near, out)
