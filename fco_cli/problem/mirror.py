"""`to_dual` and `to_primal`, over all jobs and blocks, whatever the mirror map h and the regularizer psi."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import copy, kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.regularizers.base import OneBlock

prange = range  # Numba's parallel range in the compiled kernel


class Geometry(NamedTuple):
    """What the two maps need to know at run time."""

    psi: Numbers  # [J], the numbers of the regularizer for every job
    h: Numbers  # [1], those of the mirror map
    table: Array  # [blocks, 6], Regularizer.table of the layout
    each: Array  # [P], Regularizer.each of the layout


def dual(w, h, out):  # bound by `specialize`, as is `primal`
    raise NotImplementedError


def primal(z, t, psi, h, block, out):
    raise NotImplementedError


@kernel
def to_dual(w, geometry, out):
    """out = grad h(w), for all jobs and blocks; blocks that are not regularized are Euclidean."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularized, _piece = geometry.table[b]
            if regularized:
                dual(w[j, start:stop], geometry.h[0], out[j, start:stop])
            else:
                copy(w[j, start:stop], out[j, start:stop])


@kernel
def dual_in_room(w, geometry, room):
    """grad h(w), in the room for it."""
    to_dual(w, geometry, room)
    return room


@kernel
def dual_is_primal(w, geometry, room):
    """The same of a Euclidean h: w itself."""
    return w


@kernel
def to_primal(z, t, geometry, out):
    """out = grad (h + t psi)*(z), for all jobs and blocks; t [J] may be 0."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                block = OneBlock(piece, rows, columns, geometry.each[start:stop])
                primal(z[j, start:stop], t[j], geometry.psi[j], geometry.h[0], block, out[j, start:stop])
            else:
                copy(z[j, start:stop], out[j, start:stop])


@kernel
def primal_of_all(z, t, geometry, batches, k, out):
    """`to_primal`, which a batch of dense rows needs of all weights."""
    to_primal(z, t, geometry, out)


@kernel
def primal_of_stored(z, t, geometry, batches, k, out):
    """`to_primal` of the weights that batch k has stored entries for, and of the biases; the others stay as they are.

    Of a linear model on sparse rows, with an h and a psi that take every weight by itself.
    """
    x, features, outputs = batches.x, batches.widths[0], batches.widths[-1]
    _start, stop, _rows, _columns, _regularized, piece = geometry.table[0]
    for j in range(z.shape[0]):
        for i in range(batches.edges[k], batches.edges[k + 1]):
            for e in range(x.starts[batches.order[i]], x.starts[batches.order[i] + 1]):
                for c in range(outputs):
                    at = c * features + x.columns[e]
                    block = OneBlock(piece, 1, 1, geometry.each[at : at + 1])
                    primal(z[j, at : at + 1], t[j], geometry.psi[j], geometry.h[0], block, out[j, at : at + 1])
        copy(z[j, stop:], out[j, stop:])


def prox(z, t, psi, block, out):  # bound by `specialize` to a separable regularizer's
    raise NotImplementedError


@kernel
def prox_of_each(z, t, geometry, out):
    """out = argmin_w psi(w) + sum_i (w_i - z_i)^2 / (2 t_i): a time for every weight, t [J, P], all above 0."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularized, piece = geometry.table[b]
            if regularized:
                for i in range(start, stop):
                    prox(
                        z[j, i : i + 1],
                        t[j, i],
                        geometry.psi[j],
                        OneBlock(piece, 1, 1, geometry.each[i : i + 1]),
                        out[j, i : i + 1],
                    )
            else:
                copy(z[j, start:stop], out[j, start:stop])


def value(w, psi, block):  # bound by `specialize` to the regularizer's, as are the next two
    raise NotImplementedError


def subgradient(w, psi, block, out):
    raise NotImplementedError


def lmo(g, psi, block, out):
    raise NotImplementedError


@kernel
def psi_value(w, geometry, total):
    """Add psi(w) to total [J], over all regularized blocks."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                total[j] += value(
                    w[j, start:stop], geometry.psi[j], OneBlock(piece, rows, columns, geometry.each[start:stop])
                )


@kernel
def psi_subgradient(w, geometry, out):
    """out = a subgradient of psi at w on the regularized blocks; the others keep what they hold, 0."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                block = OneBlock(piece, rows, columns, geometry.each[start:stop])
                subgradient(w[j, start:stop], geometry.psi[j], block, out[j, start:stop])


@kernel
def farthest(g, geometry, out):
    """out = the point of psi's set that is farthest along -g; blocks that are not regularized keep what they hold."""
    for j in range(g.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                lmo(
                    g[j, start:stop],
                    geometry.psi[j],
                    OneBlock(piece, rows, columns, geometry.each[start:stop]),
                    out[j, start:stop],
                )


@kernel
def assign_difference(target, minuend, subtrahend):
    """target <- minuend - subtrahend, for all jobs; their rows may be longer than the target's."""
    for j in prange(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] = minuend[j, i] - subtrahend[j, i]


@kernel
def distances(w, others, out):
    """out [J] = |w - other|, for all jobs."""
    for j in prange(w.shape[0]):
        total = 0.0
        for i in range(w.shape[1]):
            left = w[j, i] - others[j, i]
            total += left * left
        out[j] = np.sqrt(total)
