"""Tests of the operations on packed symmetric matrices: kernels against the reference definitions of ops.py."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms import ops, triangle_operations


@pytest.fixture
def triangles():
    """Two jobs of 5 x 5 matrices in 3 slots of 5 numbers, with equal magnitudes."""
    return np.random.default_rng(0).integers(-4, 5, (3, 2, 5)).astype(float)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.8, 1.0])
def test_the_largest_entries_are_kept(share, triangles):
    kernel, reference = triangles.copy(), triangles.copy()
    shares = np.array([share, 0.4])
    triangle_operations.keep_largest_of_triangle.as_python(kernel, shares)
    ops.keep_largest_of_triangle(reference, shares)
    np.testing.assert_array_equal(kernel, reference)
    for j, part in enumerate(shares):
        dropped = (triangles[:, j] != kernel[:, j]).sum()
        assert dropped + max(1, round(part * 15)) <= 15
        assert (
            np.abs(kernel[:, j]).sum()
            == np.sort(np.abs(triangles[:, j]).ravel())[::-1][: max(1, round(part * 15))].sum()
        )


def test_entries_that_are_not_finite_stay(triangles):
    triangles[1, 0, 2] = np.nan
    for keep in (triangle_operations.keep_largest_of_triangle.as_python, ops.keep_largest_of_triangle):
        broken = triangles.copy()
        keep(broken, np.array([0.2, 0.2]))
        assert np.isnan(broken[:, 0]).any()


def test_norms_and_sums(triangles):
    norms, expected, matrix = np.empty(2), np.empty(2), np.zeros((5, 5))
    triangle_operations.assign_triangle_norm.as_python(norms, triangles)
    ops.assign_triangle_norm(expected, triangles)
    np.testing.assert_allclose(norms, expected, rtol=1e-14)
    matrix[np.triu_indices(5)] = triangles[:, 1].ravel()
    matrix = matrix + np.triu(matrix, 1).T
    np.testing.assert_allclose(norms[1], np.linalg.norm(matrix), rtol=1e-14)
    total = triangles.copy()
    triangle_operations.add_triangle.as_python(total, triangles)
    np.testing.assert_array_equal(total, 2 * triangles)
    triangle_operations.subtract_triangle.as_python(total, triangles)
    np.testing.assert_array_equal(total, triangles)
