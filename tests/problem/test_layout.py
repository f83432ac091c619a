from __future__ import annotations

import numpy as np

from fco_cli.problem.layout import Block, Layout

LAYOUT = Layout((Block("weights", (2, 3)), Block("bias", (2,), regularized=False), Block("last", (4,))))


def test_blocks_are_contiguous():
    assert LAYOUT.size == 12
    assert LAYOUT.slices == {"weights": slice(0, 6), "bias": slice(6, 8), "last": slice(8, 12)}


def test_table_contains_all_blocks():
    np.testing.assert_array_equal(LAYOUT.table, [[0, 6, 2, 3, 1], [6, 8, 2, 1, 0], [8, 12, 4, 1, 1]])


def test_all_entries_but_the_bias_are_regularized():
    np.testing.assert_array_equal(np.flatnonzero(~LAYOUT.regularized), [6, 7])


def test_view_shares_memory_with_the_vectors():
    vectors = np.arange(24.0).reshape(2, 12)
    view = LAYOUT.view(vectors, "weights")
    assert view.shape == (2, 2, 3)
    view[1, 0, 2] = -1
    assert vectors[1, 2] == -1


def test_a_scalar_block_has_one_entry():
    assert Block("scale", ()).size == 1
    np.testing.assert_array_equal(Layout((Block("scale", ()),)).table, [[0, 1, 1, 1, 1]])
