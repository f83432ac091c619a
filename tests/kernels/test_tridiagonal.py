"""Eigenvectors of tridiagonal matrices and singular value thresholding, compared with LAPACK."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.singular import gram, tridiagonal
from fco_cli.kernels.tiles import empty_tiles, to_tiles
from fco_cli.kernels.tridiagonal import LANES, eigenvectors
from fco_cli.problem.regularizers import BlockInfo
from fco_cli.problem.regularizers.nuclear import Nuclear

pytestmark = [pytest.mark.ci, pytest.mark.machine_code]


def compute_eigenvectors(diagonal, off_diagonal):
    """Return True if the eigenvectors are solutions, and the eigenvectors as columns."""
    count = len(diagonal)
    tiles = empty_tiles(count, count)
    solved = eigenvectors(diagonal, off_diagonal, tiles)
    return solved, np.hstack(tiles.reshape(len(tiles), -1, LANES))[:count, :count]


def matrix_of(diagonal, off_diagonal):
    return np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1)


def tridiagonal_of(matrix):
    """Return the tridiagonal form of A A^T / |A|^2."""
    count = len(matrix)
    tiles, _norm = to_tiles(matrix.reshape(-1), BlockInfo(0, *matrix.shape, np.ones(0)))
    g, diagonal, off_diagonal = empty_tiles(count, count), np.empty(count), np.zeros(count)
    gram(tiles, len(tiles), count, g)
    tridiagonal(g, np.zeros((count + 3) // 4 * 4), diagonal, off_diagonal)
    return diagonal, off_diagonal


def with_values(values, seed=0):
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.standard_normal((len(values),) * 2))[0] for _ in range(2))
    return (left * values) @ right


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 31, 32, 33, 66])
def test_eigenvectors_of_a_random_matrix(count):
    """Tested directly, because rotations would correct errors at the cost of time only."""
    for seed in range(20):
        diagonal, off_diagonal = tridiagonal_of(np.random.default_rng(seed).standard_normal((count, count + seed)))
        solved, vectors = compute_eigenvectors(diagonal, off_diagonal)
        assert solved
        rotated = vectors.T @ matrix_of(diagonal, off_diagonal) @ vectors
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-12)
        np.testing.assert_allclose(rotated, np.diag(np.diag(rotated)), atol=1e-14)
        np.testing.assert_allclose(np.diag(rotated), np.linalg.eigvalsh(matrix_of(diagonal, off_diagonal)), atol=1e-14)


@pytest.mark.parametrize("gap", [1e-3, 1e-4, 1e-5])
def test_close_eigenvalues_have_orthogonal_vectors(gap):
    """Before neighbors are orthogonalized, the product of their vectors is about 1e-16 / gap."""
    values = np.linspace(0.1, 1, 32)
    values[10], values[20] = values[9] + gap, values[21] - gap
    solved, vectors = compute_eigenvectors(*tridiagonal_of(with_values(np.sqrt(values))))
    assert solved
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(32), atol=1e-13)


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf])
def test_decoupled_and_non_finite_matrices_are_rejected(wrong):
    diagonal, off_diagonal = tridiagonal_of(np.random.default_rng(0).standard_normal((32, 32)))
    off_diagonal[7] = wrong
    assert not compute_eigenvectors(diagonal, off_diagonal)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "values",
    [
        *(np.sqrt(np.append(np.linspace(0.2, 1, 29), 0.6 + gap * np.arange(3))) for gap in 10.0 ** -np.arange(2, 17)),
        np.append(np.full(16, 1.0) + 1e-9 * np.arange(16), np.linspace(0, 0.1, 16)),
        np.append(np.linspace(1, 2, 26), np.zeros(6)),  # low rank
        np.append(np.linspace(1, 2, 3), np.zeros(29)),
        np.linspace(1, 1 + 1e-14, 32),
    ],
    ids=str,
)
def test_thresholding_with_close_singular_values(values, dtype):
    """Both ways to compute eigenvectors, at once and by rotations, give accurate results."""
    out, psi, block = np.empty(1024, dtype), Nuclear(strength=1.0).numbers[0], BlockInfo(0, 32, 32, np.ones(0))
    matrix = with_values(values).astype(dtype)
    u, s, v = np.linalg.svd(matrix.astype(float))
    for threshold in (1e-5, 1e-3, 0.05, 0.3, *values[[3, 30]]):
        Nuclear.prox(matrix.reshape(-1), threshold, psi, block, out)
        expected = (u * np.maximum(s - threshold, 0)) @ v
        slack = (1e-12 if dtype == "float64" else 2e-7) * np.linalg.norm(matrix)
        np.testing.assert_allclose(out.reshape(32, 32), expected, rtol=0, atol=slack)


def test_thresholding_along_local_steps():
    """The states of dual averaging have rank 10 at first and full rank later, with singular values around t."""
    random, psi, block = np.random.default_rng(3), Nuclear(strength=0.5).numbers[0], BlockInfo(0, 32, 32, np.ones(0))
    z, out, truth, rate = np.zeros(1024), np.zeros(1024), np.diag(np.repeat([1.0, 0.0], 16)).ravel(), 1e-4
    for k in range(1, 60):
        x = random.standard_normal((10, 1024)) + random.standard_normal(1024) * (k % 13 > 3)
        z -= rate * 2 * x.T @ (x @ (out - truth)) / 10
        Nuclear.prox(z, rate * k, psi, block, out)
        u, s, v = np.linalg.svd(z.reshape(32, 32))
        expected = (u * np.maximum(s - rate * k / 2, 0)) @ v
        np.testing.assert_allclose(out.reshape(32, 32), expected, rtol=0, atol=1e-12 * np.linalg.norm(z))
    assert np.all(s < 100)
