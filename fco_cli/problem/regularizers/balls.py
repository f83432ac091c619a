"""Constraints to an l1 or l2 ball: psi is 0 inside and infinite outside, its prox the projection.

What a projection returns lies inside the ball and not only up to rounding: norms are summed in float64 whatever
the precision of the vector, and the last step rounds towards 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.kernels.norms import two_norm
from fco_cli.problem.regularizers.base import Ball, absolute_sum, scale
from fco_cli.problem.regularizers.penalties import soft_threshold

SAMPLE_FROM = 2048  # entries; a smaller vector needs no sample
SAMPLE_STRIDE = 17  # coprime to the usual widths of layers, so that the sample sees every column of a kernel
STRETCH = 1024  # entries that are summed in the vector's own precision, which is fast


@kernel
def excess_over(z, limit):
    """sum_i max(|z_i| - limit, 0), and how many terms are not 0; without a branch, so that it vectorizes."""
    zero = z.dtype.type(0)
    excess, above = 0.0, 0
    for low in range(0, z.shape[0], STRETCH):
        part = z[low : low + STRETCH]
        total, count = zero, np.int32(0)
        for i in range(part.shape[0]):
            over = abs(part[i]) - limit
            total += max(over, zero)
            count = np.int32(count + np.int32(over > zero))
        excess += total
        above += count
    return excess, above


@kernel
def newton(z, radius, theta):
    """The theta with sum_i max(|z_i| - theta, 0) = radius, by Newton's method from any start.

    The sum is convex, falling and piecewise linear in theta: a step from the right of the root lands on its left, from
    there on no step overshoots, and the root is exact when the set of entries above theta no longer changes
    (Michelot's method). After the first step only rounding could make that set grow.
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
    """The theta > 0 with sum_i max(|z_i| - theta, 0) = radius, for total = |z|_1 > radius.

    Expected time O(n): a sample of the entries tells where to start, and two or three passes over z remain.
    """
    theta = (total - radius) / z.shape[0]  # at most the root: it would be the root if no entry were below it
    if z.shape[0] >= SAMPLE_FROM:
        sample = np.empty(z.shape[0] // SAMPLE_STRIDE, z.dtype)
        for i in range(sample.shape[0]):
            sample[i] = z[i * SAMPLE_STRIDE]
        theta = newton(sample, radius * sample.shape[0] / z.shape[0], theta)
    return newton(z, radius, theta)


@kernel
def factor_within(norm, radius, like):
    """radius / norm in the precision of the array `like`, so rounded that what it scales stays within the radius."""
    eps = 2.3e-16 if like.itemsize == 8 else 1.2e-7
    return like.dtype.type(radius / norm * (1 - 2 * eps))


@kernel
def project_onto_l1_ball(z, radius, out):
    total = absolute_sum(z)
    if total <= radius:
        copy(z, out)
        return
    theta = z.dtype.type(l1_ball_threshold(z, total, radius))
    soft_threshold(z, theta, z.dtype.type(1), out)
    total = absolute_sum(out)
    if total > radius:
        soft_threshold(z, theta, factor_within(total, radius, z), out)


@dataclass(kw_only=True)
class L1Ball(Ball):
    """|w|_1 <= radius, each regularized block on its own."""

    name: str = "l1_ball"
    bounds_two_norm = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        project_onto_l1_ball(z, psi.radius, out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """-radius sign(g_i) at the largest |g_i|, 0 elsewhere."""
        top = 0
        for i in range(g.shape[0]):
            out[i] = 0 * g[i]
            if abs(g[i]) > abs(g[top]):
                top = i
        out[top] -= psi.radius * np.sign(g[top])


@dataclass(kw_only=True)
class L2Ball(Ball):
    """|w|_2 <= radius, each regularized block on its own."""

    name: str = "l2_ball"
    bounds_two_norm = True

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        norm = two_norm(z)
        scale(z, z.dtype.type(1) if norm <= psi.radius else factor_within(norm, psi.radius, z), out)

    @staticmethod
    @kernel
    def lmo(g, psi, block, out):
        """-radius g / |g|."""
        norm = two_norm(g)
        scale(g, g.dtype.type(0) if norm <= 1e-300 else -factor_within(norm, psi.radius, g), out)
