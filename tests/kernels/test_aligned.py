"""Rows that are brought near are the same rows, each at the beginning of a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.aligned import (
    LINE,
    PANEL,
    READERS,
    ask_for_two,
    gathered,
    in_panels,
    rows_on_lines,
    two_are_left,
    where_they_are,
)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 1024])
def test_rows_begin_cache_lines_and_take_an_odd_number_of_them(width, dtype):
    room = rows_on_lines.as_python(3, np.empty((1, width), dtype))
    lines = room.strides[0] / LINE
    assert room.shape[0] == 3
    assert room.shape[1] >= width
    assert room.ctypes.data % LINE == 0
    assert lines % 2 == 1
    assert lines * LINE < (width * room.itemsize + 2 * LINE)
    assert room.flags.c_contiguous


def test_several_vectors_read_copies_and_few_the_rows_themselves():
    x, rows = np.random.default_rng(0).standard_normal((6, 5)), np.array([4, 0, 4])
    near, same = (gathered(x, rows, np.array([5, 1]), vectors) for vectors in (READERS, READERS - 1))
    np.testing.assert_array_equal(near.x[near.rows, :5], x[rows])
    assert near.x.ctypes.data % LINE == 0
    np.testing.assert_array_equal(same.x[same.rows], x[rows])
    assert same.x.shape == x.shape
    for batch in (near, same):
        assert batch.soon.tolist() == [x[5].ctypes.data, x[1].ctypes.data]


def test_rows_that_are_read_only_are_gathered_too():
    x = np.arange(12.0).reshape(3, 4)
    x.flags.writeable = False
    for vectors in (1, READERS):
        near = gathered(x, np.array([2, 1]), np.array([0]), vectors)
        np.testing.assert_array_equal(near.x[near.rows, :4], x[[2, 1]])


def test_rows_that_come_next_are_asked_for_two_at_a_time():
    x = np.arange(12.0).reshape(3, 4)
    batch = gathered(x, np.array([0]), np.array([2, 1, 0]), READERS)
    assert two_are_left(batch)
    assert ask_for_two(batch) == (x[2].ctypes.data, x[1].ctypes.data)
    assert not two_are_left(batch)
    assert not two_are_left(where_they_are(x, np.array([0])))


@pytest.mark.parametrize("columns", [1, PANEL, PANEL + 3])
def test_panels_are_some_columns_each_and_then_zeros(columns):
    matrix = np.random.default_rng(0).standard_normal((5, columns))
    panels = in_panels(matrix)
    side_by_side = np.concatenate(list(panels), axis=1)
    np.testing.assert_array_equal(side_by_side[:, :columns], matrix)
    np.testing.assert_array_equal(side_by_side[:, columns:], 0)
    assert panels.shape[1:] == (5, PANEL)
    assert panels.ctypes.data % LINE == 0
    assert panels.flags.c_contiguous
