"""Templates of `to_dual`, `to_primal` and the operators of psi, over all jobs and blocks, for any h and psi."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fco_cli.kernels.compiled import Kernel, copy, declared, kernel
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.regularizers.base import BlockInfo
from fco_cli.problem.regularizers.sets import prox_l1_in_l1_ball

prange = range  # Numba's parallel range in the compiled kernel


class Geometry(NamedTuple):
    """Run-time parameters of the mirror map h and the regularizer psi."""

    psi: Numbers  # [J], parameters of the regularizer for every job
    h: Numbers  # [1], parameters of the mirror map
    table: Array  # [blocks, 6], Regularizer.table of the layout
    per_weight: Array  # [P], Regularizer.coordinate_numbers of the layout


class BlockKernels:
    """Kernels on one block of the weights of one job: those of a mirror map and of a regularizer."""

    dual: Kernel  # dual(w, h, out): out = grad h(w)
    primal: Kernel  # primal(z, t, psi, h, block, out): out = grad (h + t psi)*(z)
    prox: Kernel  # prox(z, t, psi, block, out): Euclidean prox of t psi
    value: Kernel  # value(w, psi, block) -> psi(w)
    subgradient: Kernel  # subgradient(w, psi, block, out)
    lmo: Kernel  # lmo(g, psi, block, out): linear minimization oracle


on_block: BlockKernels = declared(BlockKernels)


@kernel
def to_dual(w, geometry, out):
    """Compute out = grad h(w) for all jobs and blocks; unregularized blocks are Euclidean."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularized, _piece = geometry.table[b]
            if regularized:
                on_block.dual(w[j, start:stop], geometry.h[0], out[j, start:stop])
            else:
                copy(w[j, start:stop], out[j, start:stop])


@kernel
def dual_into_buffer(w, geometry, buffer):
    """Return grad h(w), computed into the buffer."""
    to_dual(w, geometry, buffer)
    return buffer


@kernel
def dual_is_primal(w, geometry, buffer):
    """Return w, which equals grad h(w) for a Euclidean h."""
    return w


@kernel
def to_primal(z, t, geometry, out):
    """Compute out = grad (h + t psi)*(z) for all jobs and blocks; t [J] may be 0."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                block = BlockInfo(piece, rows, columns, geometry.per_weight[start:stop])
                on_block.primal(z[j, start:stop], t[j], geometry.psi[j], geometry.h[0], block, out[j, start:stop])
            else:
                copy(z[j, start:stop], out[j, start:stop])


@kernel
def primal_of_all(z, t, geometry, batches, k, out):
    """Compute `to_primal` for all weights, as a batch of dense rows requires."""
    to_primal(z, t, geometry, out)


@kernel
def primal_of_stored(z, t, geometry, batches, k, out):
    """Compute `to_primal` for the weights of features stored in batch k, and for the biases; leave others unchanged.

    This requires a linear model on sparse rows, and coordinate-separable h and psi.
    """
    x, features, outputs = batches.x, batches.widths[0], batches.widths[-1]
    _start, stop, _rows, _columns, _regularized, piece = geometry.table[0]
    for j in range(z.shape[0]):
        for i in range(batches.edges[k], batches.edges[k + 1]):
            for e in range(x.starts[batches.order[i]], x.starts[batches.order[i] + 1]):
                for c in range(outputs):
                    at = c * features + x.columns[e]
                    block = BlockInfo(piece, 1, 1, geometry.per_weight[at : at + 1])
                    on_block.primal(z[j, at : at + 1], t[j], geometry.psi[j], geometry.h[0], block, out[j, at : at + 1])
        copy(z[j, stop:], out[j, stop:])


@kernel
def prox_of_each(z, t, geometry, out):
    """Compute out = argmin_w psi(w) + sum_i (w_i - z_i)^2 / (2 t_i), with a step size t [J, P] > 0 per weight."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularized, piece = geometry.table[b]
            if regularized:
                for i in range(start, stop):
                    on_block.prox(
                        z[j, i : i + 1],
                        t[j, i],
                        geometry.psi[j],
                        BlockInfo(piece, 1, 1, geometry.per_weight[i : i + 1]),
                        out[j, i : i + 1],
                    )
            else:
                copy(z[j, start:stop], out[j, start:stop])


@kernel
def primal_in_l1_ball(z, t, geometry, center, radius, out):
    """Compute out = argmin_w t psi(w) + |w - z|^2 / 2 subject to |w - center|_1 <= radius per block, for psi = l1."""
    for j in range(z.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, _rows, _columns, regularized, _piece = geometry.table[b]
            if regularized:
                threshold, factors = t[j] * geometry.psi[j].strength, geometry.per_weight[start:stop]
                own, near = z[j, start:stop], center[j, start:stop]
                prox_l1_in_l1_ball(own, threshold, factors, near, radius[j], out[j, start:stop])
            else:
                copy(z[j, start:stop], out[j, start:stop])


@kernel
def psi_value(w, geometry, total):
    """Add psi(w) to total [J], over all regularized blocks."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                total[j] += on_block.value(
                    w[j, start:stop], geometry.psi[j], BlockInfo(piece, rows, columns, geometry.per_weight[start:stop])
                )


@kernel
def psi_subgradient(w, geometry, out):
    """Compute a subgradient of psi at w on the regularized blocks; leave other blocks of `out` unchanged."""
    for j in range(w.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                block = BlockInfo(piece, rows, columns, geometry.per_weight[start:stop])
                on_block.subgradient(w[j, start:stop], geometry.psi[j], block, out[j, start:stop])


@kernel
def linear_minimization_oracle(g, geometry, out):
    """Compute out = argmin of g'w over psi's constraint set; leave unregularized blocks of `out` unchanged."""
    for j in range(g.shape[0]):
        for b in range(geometry.table.shape[0]):
            start, stop, rows, columns, regularized, piece = geometry.table[b]
            if regularized:
                on_block.lmo(
                    g[j, start:stop],
                    geometry.psi[j],
                    BlockInfo(piece, rows, columns, geometry.per_weight[start:stop]),
                    out[j, start:stop],
                )


@kernel
def assign_difference(target, minuend, subtrahend):
    """Compute target = minuend - subtrahend for all jobs; the operands may have more columns than the target."""
    for j in prange(target.shape[0]):
        for i in range(target.shape[1]):
            target[j, i] = minuend[j, i] - subtrahend[j, i]


@kernel
def distances(w, others, out):
    """Compute out [J] = |w - others| for all jobs."""
    for j in prange(w.shape[0]):
        total = 0.0
        for i in range(w.shape[1]):
            difference = w[j, i] - others[j, i]
            total += difference * difference
        out[j] = np.sqrt(total)
