"""Products of rows and weight vectors, and linear combinations of rows: the inner loops of linear models.

Rows of a batch are read in place, or from cache-aligned copies, with prefetch of the next rows. Weight vectors are
processed in groups of four, two or one, so that a number loaded from memory contributes to several sums. The order of
every sum depends only on its columns or rows, not on the number of vectors.

A vector is given by its offset: the index of its first entry in the flattened array. Vector norms do not overflow.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import copy, kernel, specialize

Array = np.ndarray

LINE = 64  # bytes of a cache line, and of the longest vector register
PANEL = 32  # columns of a panel; for four vectors, this many fit in registers (vector.py)
MIN_READERS = 6  # number of vectors from which copying the rows pays off


class BatchRows(NamedTuple):
    """Rows of one batch, x[rows], and the addresses of rows to prefetch for the next one."""

    x: Any
    rows: Array
    upcoming: Array  # addresses of the next rows
    prefetched: Array  # [1], the number of addresses in `upcoming` that were already prefetched


@kernel
def aligned_empty(count, x):
    """Return an uninitialized vector of `count` numbers of x's dtype that starts at a cache line."""
    buffer = np.empty(count + LINE // x.itemsize, x.dtype)
    first = -buffer.ctypes.data % LINE // x.itemsize
    return buffer[first : first + count]


@kernel
def aligned_rows(count, x):
    """Return an uninitialized, cache-aligned array for `count` rows of x [n, d]: [count, d + padding].

    Each row starts at a cache line, so that no load crosses two of them. It occupies an odd number of lines: rows of
    1,024 numbers would otherwise map to the same cache sets and evict each other.
    """
    lines = (x.shape[1] * x.itemsize + LINE - 1) // LINE
    width = (lines + 1 - lines % 2) * LINE // x.itemsize
    return aligned_empty(count * width, x).reshape((count, width))


@kernel
def batch_in_place(x, rows):
    """Return a batch that reads the rows in place and prefetches nothing."""
    return BatchRows(x, rows, np.empty(0, np.int64), np.empty(0, np.int64))


@kernel
def gather_rows(x, rows, coming, vectors):
    """Return a batch of x[rows] that prefetches x[coming]; rows are copied for MIN_READERS or more vectors."""
    upcoming, prefetched = np.empty(coming.shape[0], np.int64), np.zeros(1, np.int64)
    for i in range(coming.shape[0]):
        upcoming[i] = x.ctypes.data + coming[i] * x.strides[0]
    if vectors < MIN_READERS:
        return BatchRows(x, rows, upcoming, prefetched)
    copies = aligned_rows(rows.shape[0], x)
    for i in range(rows.shape[0]):
        copy(x[rows[i]], copies[i])
    return BatchRows(copies, np.arange(rows.shape[0]), upcoming, prefetched)


@kernel
def gather_in_place(x, rows, coming, vectors):
    """Return a batch that reads the rows in place, for models that gain nothing from copies or prefetch."""
    return batch_in_place(x, rows)


@kernel
def prefetch_pair(batch):
    """Return the next two addresses to prefetch and mark them as prefetched."""
    batch.prefetched[0] += 2
    return batch.upcoming[batch.prefetched[0] - 2], batch.upcoming[batch.prefetched[0] - 1]


@kernel
def can_prefetch_pair(batch):
    """Return True if at least two upcoming rows are not yet prefetched."""
    return batch.upcoming.shape[0] > 0 and batch.prefetched[0] + 2 <= batch.upcoming.shape[0]


def to_panels(matrix: Array) -> Array:
    """Return the columns of a matrix [n, d] as contiguous panels, the last padded with zeros: [panels, n, PANEL]."""
    rows, columns = matrix.shape
    count = -(-columns // PANEL)
    panels = aligned_empty.as_python(count * rows * PANEL, matrix).reshape(count, rows, PANEL)
    panels[-1] = 0
    for panel, low in zip(panels, range(0, columns, PANEL), strict=True):
        part = matrix[:, low : low + PANEL]
        panel[:, : part.shape[1]] = part
    return panels


CHUNK = 1024  # minimum number of columns processed for all vectors at a time, so that rows stay in cache
many_registers = False  # compiled code uses vector.py for this and the next two definitions


def dots(w, vectors, x, rows, count, upcoming):
    """Return the dot products (w_v . x_r, ...) over `count` columns for all vectors v and rows r.

    The compiled version also prefetches `count` columns at the addresses `upcoming`.
    """
    w, x = w.reshape(-1), x.reshape(-1)
    return tuple(w[v : v + count] @ x[r : r + count] for v in vectors for r in rows)


def add_multiples(w, vectors, x, rows, low, count, slopes, first):
    """Add slopes[first + v, i] x[rows[i], low : low + count] to w_v, for all vectors v and rows i."""
    w = w.reshape(-1)
    for own, v in zip(slopes[first:], vectors, strict=False):
        for i, row in enumerate(rows):
            w[v : v + count] += own[i] * x[row, low : low + count]


@kernel
def chunk_end(low, last):
    """Return the end of the chunk of columns that starts at `low`; the last chunk has up to 2 CHUNK - 1 columns."""
    return last if last - low < 2 * CHUNK else low + CHUNK


@kernel
def offset_of(w, v, outputs, features, low):
    """Return the offset of column `low` of vector v.

    Each row of w [J, P] starts with `outputs` vectors of length `features`; vectors are numbered across rows.
    """
    return v // outputs * w.shape[1] + v % outputs * features + low


@kernel
def offsets_of_two(w, v, outputs, features, low):
    return offset_of(w, v, outputs, features, low), offset_of(w, v + 1, outputs, features, low)


@kernel
def offsets_of_four(w, v, outputs, features, low):
    return offsets_of_two(w, v, outputs, features, low) + offsets_of_two(w, v + 2, outputs, features, low)


@kernel
def offsets_of_five(x, rows, i, low):
    """Return the offsets of column `low` in the five rows rows[i], ..., rows[i + 4]."""
    width = x.shape[1]
    return (
        rows[i] * width + low,
        rows[i + 1] * width + low,
        rows[i + 2] * width + low,
        rows[i + 3] * width + low,
        rows[i + 4] * width + low,
    )


@kernel
def add_group_products(w, vectors, batch, low, count, sums, first):
    """Add w_v . x[rows[i], low : low + count] to sums[first + v, i], for a group of vectors v and all rows i.

    Rows are processed five at a time: with four vectors, nine loads give twenty products.
    """
    x, rows = batch.x, batch.rows
    fives = rows.shape[0] // 5 * 5
    for i in range(0, fives, 5):
        five = offsets_of_five(x, rows, i, low)
        if can_prefetch_pair(batch):
            products = dots(w, vectors, x, five, count, prefetch_pair(batch))
        else:
            products = dots(w, vectors, x, five, count, ())
        for k in range(len(products)):
            sums[first + k // 5, i + k % 5] += products[k]
    for i in range(fives, rows.shape[0]):
        products = dots(w, vectors, x, (rows[i] * x.shape[1] + low,), count, ())
        for v in range(len(products)):
            sums[first + v, i] += products[v]


@kernel
def add_to_group(w, vectors, batch, low, count, slopes, first):
    """Add slopes[first + v, i] x[rows[i], low : low + count] to w_v, for a group of vectors v and all rows i."""
    add_multiples(w, vectors, batch.x, batch.rows, low, count, slopes, first)


process_group = add_group_products  # or add_to_group, bound by `specialize`


@kernel
def by_groups(w, outputs, features, at, batch, low, count, numbers):
    """Process all vectors, starting at their column `at`, in groups of four, two or one; numbers [vectors, rows]."""
    vectors = numbers.shape[0]
    fours, twos = vectors // 4 * 4 if many_registers else 0, vectors // 2 * 2
    if many_registers:
        for v in range(0, fours, 4):
            process_group(w, offsets_of_four(w, v, outputs, features, at), batch, low, count, numbers, v)
    for v in range(fours, twos, 2):
        process_group(w, offsets_of_two(w, v, outputs, features, at), batch, low, count, numbers, v)
    for v in range(twos, vectors):
        process_group(w, (offset_of(w, v, outputs, features, at),), batch, low, count, numbers, v)


# sums[v, i] += w_v[at : at + count] . x[rows[i], low : low + count], for all vectors v
products_of_columns = by_groups
# w_v[at : at + count] += sum_i slopes[v, i] x[rows[i], low : low + count]
add_to_columns = specialize(by_groups, process_group=add_to_group)


@kernel
def add_products(w, outputs, features, batch, first, last, sums):
    """Add w_v . x[rows[i], first:last], over the columns first to last, to sums[v, i], for all vectors v."""
    low = first
    while low < last:
        count = chunk_end(low, last) - low
        products_of_columns(w, outputs, features, low, batch, low, count, sums)
        low += count


@kernel
def add_rows(w, outputs, features, batch, slopes):
    """Add sum_i slopes[v, i] x[rows[i]] to w_v, for all vectors v."""
    low = 0
    while low < features:
        count = chunk_end(low, features) - low
        add_to_columns(w, outputs, features, low, batch, low, count, slopes)
        low += count


@kernel
def squared_length(w):
    """Return |w|_2^2, summed in float64 for every dtype of w."""
    total = 0.0
    for i in range(w.shape[0]):
        entry = np.float64(w[i])
        total += entry * entry
    return total


@kernel
def two_norm(w):
    """Return |w|_2; entries are scaled by the largest one if squares overflow or underflow."""
    squared = squared_length(w)
    if 1e-280 < squared < math.inf:
        return np.sqrt(squared)
    top = 0.0
    for i in range(w.shape[0]):
        top = max(top, abs(w[i]))
    if not 1e-300 <= top < math.inf:  # zero or not finite
        return np.sqrt(squared)
    total = 0.0
    for i in range(w.shape[0]):
        share = w[i] / top
        total += share * share
    return top * np.sqrt(total)
