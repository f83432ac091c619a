"""What every evaluation asks of a model: psi, and how far it is from a solution. All of a job in one pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.problem.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import Geometry

prange = range  # Numba's parallel range in the compiled kernel


class Optimality(NamedTuple):
    psi: Array  # [J], summed over the regularized blocks
    residual: Array  # [J], |w - prox_psi(w - grad F(w))|: 0 exactly at an optimum (docs/method.md, "Metrics")


def psi_value(
    w, geometry, total
):  # bound by `specialize` to the problem's, as is `to_primal`: the prox within h's domain
    raise NotImplementedError


def to_primal(z, t, geometry, out):
    raise NotImplementedError


@kernel
def optimality(w, gradient, geometry, psi, residual):
    """Add psi(w_j) to psi [J], and residual [J] = |w_j - p_j|, p_j the prox of psi at w_j - gradient_j."""
    size = w.shape[1]
    for j in prange(w.shape[0]):
        own = Geometry(geometry.psi[j : j + 1], geometry.h, geometry.table, geometry.each)
        psi_value(w[j : j + 1], own, psi[j : j + 1])
        ahead, nearest = np.empty((1, size)), np.empty((1, size))
        for i in range(size):
            ahead[0, i] = w[j, i] - gradient[j, i]
        to_primal(ahead, np.ones(1), own, nearest)
        squares = 0.0
        for i in range(size):
            squares += (w[j, i] - nearest[0, i]) ** 2
        residual[j] = np.sqrt(squares)
