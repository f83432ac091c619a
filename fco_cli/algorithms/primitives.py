"""Primitives for writing local steps.

The functions that raise NotImplementedError are placeholders: `specialize` binds them to the problem.
"""

from __future__ import annotations

from fco_cli.kernels.aligned import aligned_rows
from fco_cli.kernels.compiled import kernel


def descend(state, query, batches, k, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k)."""
    raise NotImplementedError


def descend_dual(z, t, geometry, batches, k, rate, w):
    """z <- z - rate * (gradient at to_primal(z, t) of the mean loss over batch k); w is a buffer for the primal."""
    raise NotImplementedError


def to_dual(w, geometry, out):
    """out = grad h(w)."""
    raise NotImplementedError


def as_dual(w, geometry, buffer):
    """Return grad h(w): w itself if h is Euclidean, otherwise `buffer`."""
    raise NotImplementedError


def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z); grad h*(z) if `psi_in_steps` is False."""
    raise NotImplementedError


def free_primal(z, t, geometry, out):
    """out = grad h*(z), the inverse of to_dual; t is ignored."""
    raise NotImplementedError


def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w, 0 for unregularized weights."""
    raise NotImplementedError


@kernel
def assign(target, source):
    """target <- source, for arrays [J, P]."""
    for j in range(source.shape[0]):
        for i in range(source.shape[1]):
            target[j, i] = source[j, i]


@kernel
def aligned_copy(source):
    """Return a copy of an array [J, P] with cache-aligned rows, which is faster to read and write."""
    copy = aligned_rows(source.shape[0], source)
    assign(copy, source)
    return copy


@kernel
def aligned_zeros(like):
    """Return zeros in the shape of `like` [J, P], with cache-aligned rows."""
    zeros = aligned_rows(like.shape[0], like)
    for j in range(zeros.shape[0]):
        for i in range(zeros.shape[1]):
            zeros[j, i] = 0
    return zeros


@kernel
def add(target, source):
    """target <- target + source."""
    for j in range(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] += source[j, i]


@kernel
def subtract(target, source):
    """target <- target - source."""
    for j in range(source.shape[0]):
        for i in range(source.shape[1]):
            target[j, i] -= source[j, i]


@kernel
def step_along(target, rate, direction):
    """target <- target - rate * direction, for rates [J]."""
    for j in range(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] -= rate[j] * direction[j, i]
