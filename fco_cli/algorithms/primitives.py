"""The words that local steps are written in. `specialize` binds the first seven to the problem at hand."""

from __future__ import annotations

from fco_cli.kernels.aligned import rows_on_lines
from fco_cli.kernels.compiled import kernel


def descend(state, query, batches, k, rate):
    """state <- state - rate * (gradient at `query` of the mean loss over batch k)."""
    raise NotImplementedError


def descend_dual(z, t, geometry, batches, k, rate, w):
    """z <- z - rate * (gradient at to_primal(z, t) of the mean loss over batch k); w is room for that primal."""
    raise NotImplementedError


def to_dual(w, geometry, out):
    """out = grad h(w)."""
    raise NotImplementedError


def as_dual(w, geometry, room):
    """grad h(w): w itself where h is Euclidean, else in `room`."""
    raise NotImplementedError


def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z); grad h*(z) where an algorithm's local steps do not know psi."""
    raise NotImplementedError


def free_primal(z, t, geometry, out):
    """out = grad h*(z), whatever t: the inverse of to_dual."""
    raise NotImplementedError


def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w, 0 where psi does not act."""
    raise NotImplementedError


@kernel
def assign(target, source):
    """target <- source, for arrays [J, P]."""
    for j in range(source.shape[0]):
        for i in range(source.shape[1]):
            target[j, i] = source[j, i]


@kernel
def on_lines(source):
    """A copy of an array [J, P] that is read and written fastest: wider, every row begins a cache line."""
    copied = rows_on_lines(source.shape[0], source)
    assign(copied, source)
    return copied


@kernel
def zeros_on_lines(like):
    """Zeros in the place of such a copy."""
    zeros = rows_on_lines(like.shape[0], like)
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
    """target <- target - rate * direction, with a rate [J]."""
    for j in range(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] -= rate[j] * direction[j, i]
