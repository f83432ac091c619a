"""Eigenvectors that are all found at a time, against LAPACK, and the thresholding of singular values that uses them."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.singular import gram, tridiagonal
from fco_cli.kernels.tiles import empty_tiles, wide
from fco_cli.kernels.tridiagonal import LANES, eigenvectors
from fco_cli.problem.regularizers import OneBlock
from fco_cli.problem.regularizers.nuclear import Nuclear

pytestmark = pytest.mark.machine_code


def found(diagonal, beside):
    """Whether eigenvectors were found, and they, as columns."""
    count = len(diagonal)
    tiles = empty_tiles(count, count)
    fine = eigenvectors(diagonal, beside, tiles)
    return fine, np.hstack(tiles.reshape(len(tiles), -1, LANES))[:count, :count]


def matrix_of(diagonal, beside):
    return np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)


def tridiagonal_of(matrix):
    """Of A A^T / |A|^2, made tridiagonal."""
    count = len(matrix)
    tiles, _norm = wide(matrix.reshape(-1), OneBlock(0, *matrix.shape, np.ones(0)))
    g, diagonal, beside = empty_tiles(count, count), np.empty(count), np.zeros(count)
    gram(tiles, len(tiles), count, g)
    tridiagonal(g, np.zeros((count + 3) // 4 * 4), diagonal, beside)
    return diagonal, beside


def with_values(values, seed=0):
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.standard_normal((len(values),) * 2))[0] for _ in range(2))
    return (left * values) @ right


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 31, 32, 33, 66])
def test_eigenvectors_of_a_random_matrix(count):
    """Rotations would mend what is missed here, and nobody would notice but by the time that takes."""
    for seed in range(20):
        diagonal, beside = tridiagonal_of(np.random.default_rng(seed).standard_normal((count, count + seed)))
        fine, vectors = found(diagonal, beside)
        assert fine
        turned = vectors.T @ matrix_of(diagonal, beside) @ vectors
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-12)
        np.testing.assert_allclose(turned, np.diag(np.diag(turned)), atol=1e-14)
        np.testing.assert_allclose(np.diag(turned), np.linalg.eigvalsh(matrix_of(diagonal, beside)), atol=1e-14)


@pytest.mark.parametrize("gap", [1e-3, 1e-4, 1e-5])
def test_close_eigenvalues_have_orthogonal_vectors(gap):
    """Before neighbours are separated their vectors have a product of some 1e-16 / gap."""
    values = np.linspace(0.1, 1, 32)
    values[10], values[20] = values[9] + gap, values[21] - gap
    fine, vectors = found(*tridiagonal_of(with_values(np.sqrt(values))))
    assert fine
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(32), atol=1e-13)


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf])
def test_a_matrix_in_two_parts_is_refused_and_so_is_one_that_is_not_finite(wrong):
    diagonal, beside = tridiagonal_of(np.random.default_rng(0).standard_normal((32, 32)))
    beside[7] = wrong
    assert not found(diagonal, beside)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "values",
    [
        *(np.sqrt(np.append(np.linspace(0.2, 1, 29), 0.6 + gap * np.arange(3))) for gap in 10.0 ** -np.arange(2, 17)),
        np.append(np.full(16, 1.0) + 1e-9 * np.arange(16), np.linspace(0, 0.1, 16)),
        np.append(np.linspace(1, 2, 26), np.zeros(6)),  # a sum of two matrices of low rank
        np.append(np.linspace(1, 2, 3), np.zeros(29)),
        np.linspace(1, 1 + 1e-14, 32),
    ],
    ids=str,
)
def test_thresholding_whatever_the_distance_of_singular_values(values, dtype):
    """However the eigenvectors are found, all at a time or by rotations."""
    out, psi, block = np.empty(1024, dtype), Nuclear(strength=1.0).numbers[0], OneBlock(0, 32, 32, np.ones(0))
    matrix = with_values(values).astype(dtype)
    u, s, v = np.linalg.svd(matrix.astype(float))
    for threshold in (1e-5, 1e-3, 0.05, 0.3, *values[[3, 30]]):
        Nuclear.prox(matrix.reshape(-1), threshold, psi, block, out)
        expected = (u * np.maximum(s - threshold, 0)) @ v
        slack = (1e-12 if dtype == "float64" else 2e-7) * np.linalg.norm(matrix)
        np.testing.assert_allclose(out.reshape(32, 32), expected, rtol=0, atol=slack)


def test_thresholding_along_local_steps():
    """States of dual averaging: the first of rank 10, later ones dense, with singular values on either side of t."""
    random, psi, block = np.random.default_rng(3), Nuclear(strength=0.5).numbers[0], OneBlock(0, 32, 32, np.ones(0))
    z, out, truth, rate = np.zeros(1024), np.zeros(1024), np.diag(np.repeat([1.0, 0.0], 16)).ravel(), 1e-4
    for k in range(1, 60):
        x = random.standard_normal((10, 1024)) + random.standard_normal(1024) * (k % 13 > 3)
        z -= rate * 2 * x.T @ (x @ (out - truth)) / 10
        Nuclear.prox(z, rate * k, psi, block, out)
        u, s, v = np.linalg.svd(z.reshape(32, 32))
        expected = (u * np.maximum(s - rate * k / 2, 0)) @ v
        np.testing.assert_allclose(out.reshape(32, 32), expected, rtol=0, atol=1e-12 * np.linalg.norm(z))
    assert np.all(s < 100)
