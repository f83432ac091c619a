"""`to_dual` and `to_primal`, over all jobs and blocks, whatever the mirror map h and the regularizer psi."""

from __future__ import annotations

from typing import NamedTuple

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.layout import Array


class Geometry(NamedTuple):
    """What the two maps need to know at run time."""

    parameters: Array  # [J, q], the numbers of the regularizer and then those of the mirror map, for every job
    table: Array  # Layout.table
    places: Array  # [blocks, 2], from where to where in `parameters` the numbers of a block lie


def dual(w, p, out):  # bound by `specialise`, as is `primal`
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
                p = geometry.parameters[j, geometry.places[b, 0] : geometry.places[b, 1]]
                dual(w[j, start:stop], p, out[j, start:stop])
            else:
                copy(w[j, start:stop], out[j, start:stop])


@kernel
def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z), for all jobs and blocks; t [J] may be 0."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularised = geometry.table[b]
            if regularised:
                p = geometry.parameters[j, geometry.places[b, 0] : geometry.places[b, 1]]
                primal(z[j, start:stop], t[j], p, (rows, columns), out[j, start:stop])
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
                p = geometry.parameters[j, geometry.places[b, 0] : geometry.places[b, 1]]
                total[j] += value(w[j, start:stop], p, (rows, columns))


@kernel
def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w on the regularised blocks; the others keep what they hold, 0."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularised = geometry.table[b]
            if regularised:
                p = geometry.parameters[j, geometry.places[b, 0] : geometry.places[b, 1]]
                subgradient(w[j, start:stop], p, (rows, columns), out[j, start:stop])
