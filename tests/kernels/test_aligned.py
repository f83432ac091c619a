"""Aligned copies contain the same rows, each at the start of a cache line."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.products import (
    LINE,
    MIN_READERS,
    PANEL,
    aligned_rows,
    batch_in_place,
    can_prefetch_pair,
    gather_rows,
    prefetch_pair,
    to_panels,
)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 16, 1024])
def test_rows_start_at_cache_lines_and_occupy_an_odd_number_of_them(width, dtype):
    buffer = aligned_rows.as_python(3, np.empty((1, width), dtype))
    lines = buffer.strides[0] / LINE
    assert buffer.shape[0] == 3
    assert buffer.shape[1] >= width
    assert buffer.ctypes.data % LINE == 0
    assert lines % 2 == 1
    assert lines * LINE < (width * buffer.itemsize + 2 * LINE)
    assert buffer.flags.c_contiguous


def test_rows_are_copied_for_many_vectors_and_read_in_place_for_few():
    x, rows = np.random.default_rng(0).standard_normal((6, 5)), np.array([4, 0, 4])
    copies, same = (gather_rows(x, rows, np.array([5, 1]), vectors) for vectors in (MIN_READERS, MIN_READERS - 1))
    np.testing.assert_array_equal(copies.x[copies.rows, :5], x[rows])
    assert copies.x.ctypes.data % LINE == 0
    np.testing.assert_array_equal(same.x[same.rows], x[rows])
    assert same.x.shape == x.shape
    for batch in (copies, same):
        assert batch.upcoming.tolist() == [x[5].ctypes.data, x[1].ctypes.data]


def test_read_only_rows_are_gathered():
    x = np.arange(12.0).reshape(3, 4)
    x.flags.writeable = False
    for vectors in (1, MIN_READERS):
        batch = gather_rows(x, np.array([2, 1]), np.array([0]), vectors)
        np.testing.assert_array_equal(batch.x[batch.rows, :4], x[[2, 1]])


def test_the_next_rows_are_prefetched_in_pairs():
    x = np.arange(12.0).reshape(3, 4)
    batch = gather_rows(x, np.array([0]), np.array([2, 1, 0]), MIN_READERS)
    assert can_prefetch_pair(batch)
    assert prefetch_pair(batch) == (x[2].ctypes.data, x[1].ctypes.data)
    assert not can_prefetch_pair(batch)
    assert not can_prefetch_pair(batch_in_place(x, np.array([0])))


@pytest.mark.parametrize("columns", [1, PANEL, PANEL + 3])
def test_panels_contain_all_columns_padded_with_zeros(columns):
    matrix = np.random.default_rng(0).standard_normal((5, columns))
    panels = to_panels(matrix)
    side_by_side = np.concatenate(list(panels), axis=1)
    np.testing.assert_array_equal(side_by_side[:, :columns], matrix)
    np.testing.assert_array_equal(side_by_side[:, columns:], 0)
    assert panels.shape[1:] == (5, PANEL)
    assert panels.ctypes.data % LINE == 0
    assert panels.flags.c_contiguous
