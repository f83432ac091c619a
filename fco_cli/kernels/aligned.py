"""Rows where a processor reads them fastest, and in time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import copy, kernel

Array = np.ndarray

LINE = 64  # bytes of a cache line, and of the longest vector register
PANEL = 32  # columns of a matrix: as many of four vectors stay in registers (vector.py)
READERS = 6  # vectors that read a row often enough for a copy to pay


class Gathered(NamedTuple):
    """Rows for a model to read, those at `rows` of x, while memory is asked for others."""

    x: Any
    rows: Array
    soon: Array  # the addresses of rows that come next
    asked: Array  # [1], of how many of them so far


@kernel
def room_on_lines(count, x):
    """Room for so many numbers like those of x that begins a cache line."""
    room = np.empty(count + LINE // x.itemsize, x.dtype)
    first = -room.ctypes.data % LINE // x.itemsize
    return room[first : first + count]


@kernel
def rows_on_lines(count, x):
    """Room for so many rows like those of x [n, d]: [count, wider].

    Each row begins a cache line, so that no load touches two, and takes an odd number of them: rows of 1,024 numbers
    would otherwise compete for the same places in a cache.
    """
    lines = (x.shape[1] * x.itemsize + LINE - 1) // LINE
    wider = (lines + 1 - lines % 2) * LINE // x.itemsize
    return room_on_lines(count * wider, x).reshape((count, wider))


@kernel
def where_they_are(x, rows):
    """Rows that are read in place, with none to come."""
    return Gathered(x, rows, np.empty(0, np.int64), np.empty(0, np.int64))


@kernel
def gathered(x, rows, coming, vectors):
    """Rows of x, side by side if enough vectors will read them; others are coming."""
    soon, asked = np.empty(coming.shape[0], np.int64), np.zeros(1, np.int64)
    for i in range(coming.shape[0]):
        soon[i] = x.ctypes.data + coming[i] * x.strides[0]
    if vectors < READERS:
        return Gathered(x, rows, soon, asked)
    near = rows_on_lines(rows.shape[0], x)
    for i in range(rows.shape[0]):
        copy(x[rows[i]], near[i])
    return Gathered(near, np.arange(rows.shape[0]), soon, asked)


@kernel
def in_place(x, rows, coming, vectors):
    """For models that read the rows where they are."""
    return where_they_are(x, rows)


@kernel
def ask_for_two(batch):
    """The addresses of two more of the rows that come next."""
    batch.asked[0] += 2
    return batch.soon[batch.asked[0] - 2], batch.soon[batch.asked[0] - 1]


@kernel
def two_are_left(batch):
    """Whether two more rows come that memory has not been asked for."""
    return batch.soon.shape[0] > 0 and batch.asked[0] + 2 <= batch.soon.shape[0]


def in_panels(matrix: Array) -> Array:
    """The columns of a matrix [n, d], some in one piece and then the next, filled up with zeros: [panels, n, PANEL]."""
    rows, columns = matrix.shape
    panels = -(-columns // PANEL)
    near = room_on_lines.as_python(panels * rows * PANEL, matrix).reshape(panels, rows, PANEL)
    near[-1] = 0
    for panel, low in zip(near, range(0, columns, PANEL), strict=True):
        part = matrix[:, low : low + PANEL]
        panel[:, : part.shape[1]] = part
    return near
