"""Mirror maps: the distance-generating function h behind `to_dual` and `to_primal` (SPEC section 1)."""

from __future__ import annotations

from typing import NamedTuple

from fco_cli.problem.compiled import Kernel, copy, kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.regularizers import Regularizer


class Euclidean:
    """h(w) = |w|^2 / 2: the dual is the primal, and to_primal is the prox."""

    name = "euclidean"

    @staticmethod
    @kernel
    def dual(w, out):
        """grad h, on one block of one job."""
        copy(w, out)

    @staticmethod
    @kernel
    def free_primal(z, t, p, shape, out):
        """grad h*: back to the primal with no psi."""
        copy(z, out)

    def primal(self, regularizer: type[Regularizer]) -> Kernel:
        """The kernel of grad (h + t psi)*, or a refusal that names both where there is no closed form."""
        return regularizer.prox


class Geometry(NamedTuple):
    """What the two maps need to know at run time."""

    parameters: Array  # [J, q], the regularizer's numbers for every job
    table: Array  # Layout.table


def dual(w, out):  # bound by `specialise`, as is `primal`
    raise NotImplementedError


def primal(z, t, p, shape, out):
    raise NotImplementedError


@kernel
def to_dual(w, geometry, out):
    """out = grad h(w), for all jobs and blocks; blocks that are not regularised are Euclidean."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularised = geometry.table[b]
            if regularised:
                dual(w[j, start:stop], out[j, start:stop])
            else:
                copy(w[j, start:stop], out[j, start:stop])


@kernel
def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z), for all jobs and blocks; t [J] may be 0."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularised = geometry.table[b]
            if regularised:
                primal(z[j, start:stop], t[j], geometry.parameters[j], (rows, columns), out[j, start:stop])
            else:
                copy(z[j, start:stop], out[j, start:stop])


def value(w, p, shape):  # bound by `specialise` to the regularizer's, as is `subgradient`
    raise NotImplementedError


def subgradient(w, p, shape, out):
    raise NotImplementedError


@kernel
def psi_value(w, geometry, total):
    """Add psi(w) to total [J], over all regularised blocks."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularised = geometry.table[b]
            if regularised:
                total[j] += value(w[j, start:stop], geometry.parameters[j], (rows, columns))


@kernel
def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w on the regularised blocks; the others keep what they hold, 0."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularised = geometry.table[b]
            if regularised:
                subgradient(w[j, start:stop], geometry.parameters[j], (rows, columns), out[j, start:stop])
