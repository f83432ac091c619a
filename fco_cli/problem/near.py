"""Rows where a processor reads them fastest."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.compiled import copy, kernel
from fco_cli.problem.layout import Array

LINE = 64  # bytes of a cache line, and of the longest vector register
READERS = 4  # vectors that read a row often enough for a copy to pay


@kernel
def rows_on_lines(count, x):
    """Room for so many rows like those of x [n, d]: [count, wider].

    Each row begins a cache line, so that no load touches two, and takes an odd number of them: rows of 1,024 numbers
    would otherwise compete for the same places in a cache.
    """
    lines = (x.shape[1] * x.itemsize + LINE - 1) // LINE
    wider = (lines + 1 - lines % 2) * LINE // x.itemsize
    room = np.empty(count * wider + LINE // x.itemsize, x.dtype)
    first = -room.ctypes.data % LINE // x.itemsize
    return room[first : first + count * wider].reshape((count, wider))


@kernel
def gathered(x, rows, vectors):
    """The rows of x side by side, if as many vectors will read them: x' and which rows of it they are."""
    if vectors < READERS:
        return x, rows
    near = rows_on_lines(rows.shape[0], x)
    for i in range(rows.shape[0]):
        copy(x[rows[i]], near[i])
    return near, np.arange(rows.shape[0])


@kernel
def in_place(x, rows, vectors):
    """For models that read the rows where they are."""
    return x, rows


def on_lines(matrix: Array) -> Array:
    """A copy of a matrix [n, d] for kernels that know d: [n, wider]."""
    near = rows_on_lines.as_python(len(matrix), matrix)
    near[:, : matrix.shape[1]] = matrix
    return near
