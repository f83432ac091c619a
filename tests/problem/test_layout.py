from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Block, Layout

LAYOUT = Layout((Block("weights", (2, 3)), Block("bias", (2,), regularized=False), Block("last", (4,))))


def test_blocks_follow_one_another():
    assert LAYOUT.size == 12
    assert LAYOUT.slices == {"weights": slice(0, 6), "bias": slice(6, 8), "last": slice(8, 12)}


def test_table_says_the_same_to_the_kernels():
    np.testing.assert_array_equal(LAYOUT.table, [[0, 6, 2, 3, 1], [6, 8, 2, 1, 0], [8, 12, 4, 1, 1]])


def test_regularised_is_all_but_the_bias():
    np.testing.assert_array_equal(np.flatnonzero(~LAYOUT.regularized), [6, 7])


def test_view_is_a_window_into_every_job():
    vectors = np.arange(24.0).reshape(2, 12)
    kernel = LAYOUT.view(vectors, "weights")
    assert kernel.shape == (2, 2, 3)
    kernel[1, 0, 2] = -1
    assert vectors[1, 2] == -1


def test_a_scalar_block_has_one_entry():
    assert Block("scale", ()).size == 1
    np.testing.assert_array_equal(Layout((Block("scale", ()),)).table, [[0, 1, 1, 1, 1]])
