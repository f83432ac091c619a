"""Cache-aligned copies of batch rows, with prefetch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import copy, kernel

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
