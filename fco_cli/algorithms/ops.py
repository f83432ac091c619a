"""Operations in which algorithms are written.

The text of an algorithm calls `ops.copy(w)`, `ops.gradient_step(...)` and so on, without loops over jobs or weights.
This module defines every operation by its formula, on NumPy arrays: it is the reference. A compiled run binds the name
`ops` to kernels (numba_backend.py), which fuse with the algorithm's text into one loop; the tests compare the two for
every algorithm.

The first axis of every array is the job axis J. States are arrays [J, P]; rates, cumulative step sizes and other
coefficients are vectors [J], on which ordinary arithmetic is allowed: `received.t + k * rate`. Operations that return
nothing write to their first argument. `batches` and `geometry` are arguments of `local_steps`, to be passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fco_cli.algorithms import numba_backend, triangle_operations
from fco_cli.kernels.compiled import Kernel


def compiled_as(kernel: Kernel) -> Callable[..., Any]:
    """Attach the kernel that replaces a reference definition in compiled code (decorator)."""

    def attach(reference: Any) -> Any:
        reference.kernel = kernel
        return reference

    return attach


# Arrays


@compiled_as(numba_backend.copy)
def copy(source):
    """Return a copy of `source` [J, P]."""
    return source.copy()


@compiled_as(numba_backend.buffer_like)
def buffer_like(source):
    """Return an array in the shape of `source` [J, P] with undefined content."""
    return source.copy()


@compiled_as(numba_backend.zeros_like)
def zeros_like(source):
    """Return zeros in the shape of `source` [J, P]."""
    zeros = source.copy()
    zeros[:] = 0
    return zeros


@compiled_as(numba_backend.assign)
def assign(target, source):
    """target <- source."""
    target[:] = source


@compiled_as(numba_backend.assign_difference)
def assign_difference(target, a, b):
    """target <- a - b."""
    target[:] = a - b


@compiled_as(numba_backend.assign_scaled_difference)
def assign_scaled_difference(target, coefficient, a, b):
    """target <- coefficient * (a - b)."""
    target[:] = coefficient[:, None] * (a - b)


@compiled_as(numba_backend.assign_quotient)
def assign_quotient(target, a, divisor):
    """target <- a / divisor, for divisors [J]."""
    target[:] = a / divisor[:, None]


@compiled_as(numba_backend.add)
def add(target, source):
    """target <- target + source."""
    target += source


@compiled_as(numba_backend.subtract)
def subtract(target, source):
    """target <- target - source."""
    target -= source


@compiled_as(numba_backend.add_multiple)
def add_multiple(target, coefficient, source):
    """target <- target + coefficient * source."""
    target += coefficient[:, None] * source


@compiled_as(numba_backend.subtract_multiple)
def subtract_multiple(target, coefficient, source):
    """target <- target - coefficient * source."""
    target -= coefficient[:, None] * source


@compiled_as(numba_backend.add_scaled_difference)
def add_scaled_difference(target, coefficient, a, b):
    """target <- target + coefficient * (a - b). With b = target, this is a step from the target towards a."""
    target += coefficient[:, None] * (a - b)


@compiled_as(numba_backend.reflection)
def reflection(x, y):
    """Return 2 x - y."""
    return 2 * x - y


@compiled_as(numba_backend.is_zero)
def is_zero(t):
    """Return True if all entries of t [J] are 0."""
    return not t.any()


# Gradients of the loss of the client's rows


def gradient_step(state, query, batches, k, rate):  # compiled as problem/descent.py, descend
    """state <- state - rate * g, where g is the gradient at `query` of the mean loss over batch k.

    `state` and `query` may be the same array.
    """
    state -= rate[:, None] * batches.gradient(query, k)


def dual_gradient_step(z, t, geometry, batches, k, rate, primal):  # compiled as problem/descent.py, descend_dual
    """z <- z - rate * g, where g is the gradient at to_primal(z, t) of the mean loss over batch k.

    `primal` is a buffer; its content afterwards is undefined.
    """
    to_primal(primal, z, t, geometry)
    gradient_step(z, primal, batches, k, rate)


@compiled_as(numba_backend.corrected_dual_step)
def corrected_dual_step(z, total, previous, dual, rate, correction):
    """z <- dual + (total - previous) - rate * correction, then previous <- total.

    If `gradient_step` accumulates -rate * g in `total`, this is z <- dual - rate * (g + correction), for the last g.
    """
    z[:] = dual + (total - previous) - rate[:, None] * correction
    previous[:] = total


@compiled_as(numba_backend.assign_gradient)
def assign_gradient(target, query, batches):
    """target <- gradient at `query` of the mean loss over all rows of the client."""
    target[:] = batches.full_gradient(query)


@compiled_as(numba_backend.assign_moments)
def assign_moments(matrix, vector, batches):
    """matrix <- mean of a a', vector <- mean of c a over the client's rows; matrix is a `Symmetric`.

    a = (x, 1), and c is the derivative of the loss at score 0; for a linear model with one score.
    """
    batches.assign_moments(matrix, vector)


@compiled_as(numba_backend.assign_curvature)
def assign_curvature(triangle, gradient, value, query, batches):
    """triangle, gradient, value <- Hessian and gradient at `query` of the mean loss over the client's rows, and itself.

    `triangle` is a `Symmetric` [slots, J, P] of all weights.
    """
    batches.assign_curvature(value, gradient, triangle, query, None)


@compiled_as(numba_backend.assign_curvature_of)
def assign_curvature_of(triangle, gradient, value, query, columns, batches):
    """Assign like `assign_curvature`, with the Hessian of some weights only, for a model with one score.

    columns [J, P] starts with the indices of job j's weights, in increasing order; the last one is the bias.
    """
    batches.assign_curvature(value, gradient, triangle, query, columns)


@compiled_as(numba_backend.assign_loss)
def assign_loss(value, w, fraction, step, batches):
    """value <- mean loss over the client's rows at w + fraction * step, for one fraction."""
    value[:] = batches.loss(w + fraction * step)


# Symmetric matrices: arrays `Symmetric` [slots, J, P] with the upper triangle of all P columns


@compiled_as(triangle_operations.add_triangle)
def add_triangle(target, source):
    """target <- target + source."""
    target += source


@compiled_as(triangle_operations.subtract_triangle)
def subtract_triangle(target, source):
    """target <- target - source."""
    target -= source


@compiled_as(triangle_operations.assign_triangle_norm)
def assign_triangle_norm(value, triangle):
    """value [J] <- Frobenius norms of the matrices."""
    size = triangle.shape[2]
    rows, columns = np.triu_indices(size)
    for j, entries in enumerate(triangle.swapaxes(0, 1).reshape(len(value), -1)[:, : len(rows)]):
        value[j] = np.sqrt((np.where(rows == columns, 1, 2) * entries**2).sum())


@compiled_as(triangle_operations.keep_largest_of_triangle)
def keep_largest_of_triangle(triangle, share):
    """Set the entries to 0 except for those of largest magnitude: the given share [J], at least one.

    Of equal magnitudes the first are kept.
    """
    size = triangle.shape[2]
    count = size * (size + 1) // 2
    for j in range(triangle.shape[1]):
        entries = triangle[:, j].ravel()
        kept = max(1, int(share[j] * count + 0.5))
        dropped = np.argsort(-np.abs(entries[:count]), kind="stable")[kept:]
        entries[dropped] = np.where(np.isfinite(entries[dropped]), 0, entries[dropped])
        triangle[:, j] = entries.reshape(-1, size)


# The mirror map h and the regularizer psi


@compiled_as(numba_backend.to_dual)
def to_dual(target, w, geometry):
    """target <- grad h(w); w itself if h is Euclidean."""
    target[:] = geometry.to_dual(w)


def as_dual(w, geometry, buffer):  # compiled as problem/mirror.py, dual_into_buffer or dual_is_primal
    """Return grad h(w): w itself if h is Euclidean, otherwise computed into `buffer`."""
    to_dual(buffer, w, geometry)
    return buffer


@compiled_as(numba_backend.to_primal)
def to_primal(target, z, t, geometry):
    """target <- grad (h + t psi)*(z): prox_{t psi}(z) if h is Euclidean; without psi if `psi_in_steps` is False."""
    target[:] = geometry.to_primal(z, t)


@compiled_as(numba_backend.to_free_primal)
def to_free_primal(target, z, geometry):
    """target <- grad h*(z), the inverse of to_dual."""
    target[:] = geometry.to_free_primal(z)


@compiled_as(numba_backend.to_primal_in_ball)
def to_primal_in_ball(target, z, t, geometry, center, radius):
    """target <- argmin_w t psi(w) + |w - z|^2 / 2 subject to |w - center|_1 <= radius, for psi = strength |w|_1.

    The constraint applies to each regularized block of weights.
    """
    target[:] = geometry.to_primal_in_ball(z, t, center, radius)


@compiled_as(numba_backend.assign_subgradient)
def assign_subgradient(target, w, geometry):
    """target <- a subgradient of psi at w on the regularized weights; other entries are unchanged."""
    geometry.assign_subgradient(target, w)


@compiled_as(numba_backend.assign_linear_minimizer)
def assign_linear_minimizer(target, g, geometry):
    """target <- argmin over psi's constraint set of g'w on the constrained weights; other entries are unchanged."""
    geometry.assign_linear_minimizer(target, g)
