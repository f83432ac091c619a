"""Gradient steps with clipped row gradients and Gaussian noise: record-level differential privacy (Abadi et al., 2016).

The contribution of a row to a sum is bounded, and noise in proportion to that bound is added to the sum. All that a
client computes afterwards is post-processing. The noise is given: one vector of standard normal numbers per sum, which
is overwritten by NaN when it is used, so that no text of an algorithm can use it twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import declared, is_finite, kernel
from fco_cli.kernels.products import two_norm
from fco_cli.problem.data import Rows
from fco_cli.problem.descent import each_row, full_order, rows_of
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.models.linear import Model
from fco_cli.problem.regularizers.sets import shrink_factor


class PrivateBatches(NamedTuple):
    """Batches of one client (`descent.Batches`) with the noise of its gradients."""

    x: Rows
    y: Array
    order: Array
    edges: Array
    widths: Array
    steps: int
    noise: Array  # [sums, J or 1, P], standard normal; 1: the same for all jobs
    numbers: Numbers  # [J], with `clip_norm` and `noise_multiplier`
    batch_size: int  # expected number of rows in a batch, by which sums are divided; 0: the actual number


class CohortNoise(NamedTuple):
    """Noise of the clients of a cohort."""

    noise: Array  # [all sums, J or 1, P]
    starts: Array  # [S + 1]; client i has the vectors starts[i] to starts[i + 1] - 1
    batch_size: int  # as in PrivateBatches; at most the number of a client's rows


model: Model = declared(Model)


@kernel
def private_batches(x, y, order, edges, widths, cohort_noise, numbers, i):
    """Return the batches of client i with its part of the cohort's noise."""
    noise = cohort_noise.noise[cohort_noise.starts[i] : cohort_noise.starts[i + 1]]
    batch_size = min(cohort_noise.batch_size, y.shape[0])
    return PrivateBatches(x, y, order, edges, widths, edges.shape[0] - 1, noise, numbers, batch_size)


@kernel
def private_full_batch(batches):
    """Return all rows of the client as one batch, with the noise of the client."""
    order, edges = full_order(batches.y.shape[0])
    noise, numbers = batches.noise, batches.numbers
    return PrivateBatches(batches.x, batches.y, order, edges, batches.widths, 1, noise, numbers, 0)


@kernel
def scale_row(scores, j, i, factor):
    """Multiply the slopes of row i in job j by a factor; 0 also replaces numbers that are not finite."""
    for c in range(scores.shape[1]):
        scores[j, c, i] = scores[j, c, i] * factor if factor > 0 else 0


@kernel
def clip_row_gradients(scores, batch, batches, steps):
    """Scale the slopes [J, C, B] such that the gradient of every row has at most the norm |steps[j]| clip_norm.

    A gradient that is not finite is replaced by 0, so that the contribution of every row is bounded.
    """
    for i in range(scores.shape[2]):
        length = model.row_norm(batch, i, batches.widths)
        for j in range(scores.shape[0]):
            norm, limit = length * two_norm(scores[j, :, i]), abs(steps[j]) * batches.numbers[j].clip_norm
            if not is_finite(norm):
                scale_row(scores, j, i, scores.dtype.type(0))
            elif norm > limit:
                scale_row(scores, j, i, shrink_factor(norm, limit, scores))


@kernel
def add_noise(target, noise, n, coefficient):
    """Add coefficient[j] times noise vector n to target[j], then overwrite the vector by NaN."""
    for j in range(target.shape[0]):
        own = noise[n, min(j, noise.shape[1] - 1)]
        if coefficient[j] != 0:
            for i in range(own.shape[0]):
                target[j, i] += coefficient[j] * own[i]
    for j in range(noise.shape[1]):
        for i in range(noise.shape[2]):
            noise[n, j, i] = math.nan


@kernel
def noise_scale(numbers, power):
    """Return the standard deviations [J] of the noise on a sum: noise_multiplier * clip_norm^power; 0 without noise."""
    deviations = np.zeros(numbers.shape[0])
    for j in range(numbers.shape[0]):
        if numbers[j].noise_multiplier > 0:
            deviations[j] = numbers[j].noise_multiplier * numbers[j].clip_norm ** power
    return deviations


@kernel
def private_gradient_step(state, query, batch, batches, k, rate, scores):
    """Update state <- state - rate * (sum of the clipped row gradients of batch k + noise) / (rows of a batch).

    A replacement for `descent.gradient_step`.
    """
    each_row(scores, batches.y, rows_of(batches, k), None, True)
    rows = scores.shape[2] if batches.batch_size == 0 else batches.batch_size
    steps, deviations = np.empty(scores.shape[0]), noise_scale(batches.numbers, 1)
    for j in range(scores.shape[0]):
        step = -rate[j] / rows
        steps[j] = step
        deviations[j] *= step
        for c in range(scores.shape[1]):
            for i in range(scores.shape[2]):
                scores[j, c, i] *= step
    clip_row_gradients(scores, batch, batches, steps)
    model.backward(state, query, batch, batches.widths, scores)
    add_noise(state, batches.noise, k, deviations)
