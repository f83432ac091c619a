"""Rows that are brought near are the same rows, each at the beginning of a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.near import LINE, READERS, gathered, on_lines, rows_on_lines


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
    near, places = gathered(x, rows, READERS)
    np.testing.assert_array_equal(near[places, :5], x[rows])
    assert near.ctypes.data % LINE == 0
    same, places = gathered(x, rows, READERS - 1)
    np.testing.assert_array_equal(same[places], x[rows])
    assert same.shape == x.shape


def test_rows_that_are_read_only_are_gathered_too():
    x = np.arange(12.0).reshape(3, 4)
    x.flags.writeable = False
    for vectors in (1, READERS):
        near, places = gathered(x, np.array([2, 1]), vectors)
        np.testing.assert_array_equal(near[places, :4], x[[2, 1]])


def test_a_copy_on_lines_has_the_matrix_first():
    matrix = np.arange(15.0).reshape(3, 5)
    np.testing.assert_array_equal(on_lines(matrix)[:, :5], matrix)
