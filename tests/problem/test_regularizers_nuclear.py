"""The nuclear norm and its ball, whose singular value decomposition is tested against LAPACK."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.kernels.singular import gram, rotated_eigenvectors, singular_pairs, tridiagonal
from fco_cli.kernels.tiles import TILE, empty_tiles, to_tiles
from fco_cli.problem.regularizers import BlockInfo
from fco_cli.problem.regularizers.nuclear import Nuclear, NuclearBall

pytestmark = [pytest.mark.ci, pytest.mark.machine_code]


def singular_value_thresholding(z, threshold):
    u, s, v = np.linalg.svd(z, full_matrices=False)
    return (u * np.maximum(s - threshold, 0)) @ v


def matrices():
    random = np.random.default_rng(5)
    for shape in [(1, 1), (1, 5), (5, 1), (3, 4), (4, 3), (6, 6), (2, 30), (30, 2), (32, 32)]:
        yield random.standard_normal(shape)
        yield np.zeros(shape)
        yield np.outer(random.standard_normal(shape[0]), random.standard_normal(shape[1]))  # rank 1
        yield np.full(shape, 2.0)
    orthogonal = np.linalg.qr(random.standard_normal((8, 8)))[0]
    yield 3 * orthogonal  # all singular values equal
    yield (orthogonal * np.logspace(0, -12, 8)) @ orthogonal.T  # from 1 to 1e-12
    rows = random.standard_normal((5, 7))
    rows[3], rows[1] = rows[0], 0  # a repeated row and a zero row
    yield rows


def harder_matrices():
    """Yield `matrices` and some that are hard for the eigenvectors of A A^T, whose eigenvalues are squares."""
    yield from matrices()
    random = np.random.default_rng(6)
    for values in (
        np.logspace(0, -12, 32),
        np.logspace(0, -60, 32),
        np.repeat([3.0, 2.0, 0.5, 0.0], 8),
        np.concatenate([[1.0], np.full(31, 1e-7)]),  # squares that are rounding noise relative to the first
        np.concatenate([np.linspace(5, 40, 16), np.linspace(0.1, 1, 16)]),  # as in the paper's task
    ):
        left, right = (np.linalg.qr(random.standard_normal((32, 32)))[0] for _ in range(2))
        yield (left * values) @ right
    yield np.diag(np.logspace(0, -12, 9))  # already orthogonal
    yield np.eye(9, 31) + np.eye(9, 31, k=1)  # A A^T is already tridiagonal


@pytest.mark.parametrize("matrix", harder_matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nuclear_against_lapack(matrix, dtype):
    """Thresholds range from 0 to above all singular values; smaller ones need a more accurate decomposition."""
    z, psi = matrix.astype(dtype).ravel(), Nuclear(strength=0.5).numbers[0]
    block, matrix, out, scale = (
        BlockInfo(0, *matrix.shape, np.ones(0)),
        z.astype(float).reshape(matrix.shape),
        np.empty_like(z),
        max(1.0, np.linalg.norm(matrix)),
    )
    slack = (1e-10 if dtype == "float64" else 1e-6) * scale
    for t in (0.0, 1e-9, 1e-5, 1e-3, 0.2, 1.0, 100.0):
        Nuclear.prox(z, t, psi, block, out)
        np.testing.assert_allclose(
            out.reshape(matrix.shape), singular_value_thresholding(matrix, t / 2), rtol=0, atol=slack
        )
    value = Nuclear.value(z, psi, block)
    assert abs(value - np.linalg.norm(matrix, "nuc") / 2) <= 1e-10 * scale


@pytest.mark.parametrize("unit", [1e-150, 1e-60, 1e60, 1e150])
def test_nuclear_at_extreme_scales(unit):
    psi, out = Nuclear(strength=0.5).numbers[0], np.empty(32 * 32)
    for matrix in harder_matrices():
        for t in (1e-3, 1.0):
            Nuclear.prox(
                unit * matrix.ravel(), unit * t, psi, BlockInfo(0, *matrix.shape, np.ones(0)), out[: matrix.size]
            )
            expected = singular_value_thresholding(matrix, t / 2).ravel()
            np.testing.assert_allclose(out[: matrix.size] / unit, expected, rtol=0, atol=1e-9)


def from_tiles(tiles, count):
    """Return the matrix, including the zeros that pad its last columns."""
    return np.hstack(tiles.reshape(len(tiles), -1, TILE))[:count]


@pytest.mark.parametrize("size", [2, 3, 31, 32, 40])
def test_the_first_sweep_finds_all_eigenvalues(size):
    """Jacobi rotations would correct its errors later, so that only the run time would show them."""
    matrix = np.random.default_rng(size).standard_normal((size, size))
    tiles, norm = to_tiles(matrix.reshape(-1), BlockInfo(0, size, size, np.ones(0)))
    g, diagonal, off_diagonal, factors = (
        empty_tiles(size, size),
        np.empty(size),
        np.zeros(size),
        np.zeros((size + 3) // 4 * 4),
    )
    gram(tiles, tiles.shape[0], size, g)
    tridiagonal(g, factors, diagonal, off_diagonal)
    rotated_eigenvectors(diagonal, off_diagonal, 2e-16, empty_tiles(size, size))
    expected = np.linalg.eigvalsh(matrix @ matrix.T) / norm**2
    np.testing.assert_allclose(np.sort(diagonal), expected, atol=1e-13)


@pytest.mark.parametrize("matrix", harder_matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
def test_rows_become_orthogonal_by_rotation(matrix):
    """Including rows of tiny singular values, which the eigenvectors of A A^T cannot separate."""
    count = min(matrix.shape)
    tiles, norm = to_tiles(matrix.ravel(), BlockInfo(0, *matrix.shape, np.ones(0)))
    a = from_tiles(tiles, count)
    u, rows, squared = singular_pairs(tiles, count, 0.0)
    u, rows = from_tiles(u, count)[:, :count], from_tiles(rows, count)
    np.testing.assert_allclose(u.T @ u, np.eye(count), atol=1e-13)
    np.testing.assert_allclose(u @ rows, a, atol=1e-13)
    np.testing.assert_allclose(norm * np.linalg.norm(a), np.linalg.norm(matrix), rtol=1e-14)
    np.testing.assert_allclose(rows.T @ rows, a.T @ a, atol=1e-13)  # invariant under rotations
    np.testing.assert_allclose(squared, (rows**2).sum(axis=1), rtol=1e-12)
    lengths = np.sqrt(squared)
    is_counted = lengths > 1e-15
    cosines = (rows @ rows.T)[np.ix_(is_counted, is_counted)] / np.outer(lengths, lengths)[
        np.ix_(is_counted, is_counted)
    ]
    np.testing.assert_allclose(cosines, np.eye(is_counted.sum()), atol=2e-12)


def random_matrices(seed: int, shape: tuple[int, int]):
    """Yield matrices of many difficult kinds, at scales from 1e-12 to 1e12."""
    random, count = np.random.default_rng(seed), min(shape)
    rows, columns = (np.linspace(0, random.choice([6, 10, 14]), side) for side in shape)
    left, right = (np.linalg.qr(random.standard_normal((side, count)))[0] for side in shape)
    normal, rank = random.standard_normal(shape), random.integers(1, count + 1)
    kinds = [
        normal,
        normal * 10 ** -rows[:, None],  # graded rows
        normal * 10**-columns,
        normal * 10 ** -(rows[:, None] + columns) / 2,
        random.standard_normal((shape[0], rank)) @ random.standard_normal((rank, shape[1])),
        (left * random.choice([1.0, 2.0, 5.0], count)) @ right.T,  # repeated singular values
        (left * np.logspace(0, -random.choice([3, 8, 12, 16, 20]), count)) @ right.T,
        (left * np.append(1, np.full(count - 1, 10.0 ** -random.choice([3, 7, 10])))) @ right.T,
        random.integers(-2, 3, shape).astype(float) + np.eye(*shape) * 10,
    ]
    for kind in kinds:
        yield kind * 10.0 ** random.choice([-12, -6, 0, 6, 12])


SHAPES = [
    (1, 1),
    (1, 7),
    (7, 1),
    (2, 2),
    (3, 4),
    (4, 3),
    (6, 6),
    (6, 30),
    (30, 6),
    (10, 64),
    (32, 32),
    (33, 70),
    (66, 34),
]  # tiles have 32 columns
SEEDS = range(6)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def project_onto_nuclear_ball(matrix, radius):
    """Return the projection, computed with LAPACK."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    excess = (np.cumsum(s) - radius) / np.arange(1, len(s) + 1)
    return (u * np.maximum(s - excess[s > excess][-1], 0)) @ v if s.sum() > radius else matrix


@each_shape
def test_prox_and_projection_are_accurate(shape):
    """Errors are relative to the norm of the matrix; thresholds range from 1e-12 to half the largest singular value."""
    block, out = BlockInfo(0, *shape, np.ones(0)), np.empty(shape)
    for matrix in (one for seed in SEEDS for one in random_matrices(seed, shape)):
        singular = np.linalg.svd(matrix, compute_uv=False)
        scale = np.linalg.norm(matrix)
        value = Nuclear.value(matrix.ravel(), Nuclear(strength=0.5).numbers[0], block)
        assert value == pytest.approx(singular.sum() / 2, rel=1e-13)
        for share in (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5):
            threshold, radius = share * singular[0], share * singular.sum()
            Nuclear.prox(matrix.ravel(), 2 * threshold, Nuclear(strength=0.5).numbers[0], block, out.ravel())
            error = np.linalg.norm(out - singular_value_thresholding(matrix, threshold))
            assert error <= 1e-11 * scale
            NuclearBall.prox(matrix.ravel(), 0.0, NuclearBall(radius=radius).numbers[0], block, out.ravel())
            assert np.linalg.norm(out - project_onto_nuclear_ball(matrix, radius)) <= 2e-13 * scale
            assert np.linalg.norm(out, "nuc") <= radius * (1 + 1e-11)


@each_shape
def test_subgradient(shape):
    """A subgradient has no singular value above 1, and its inner product with W is the norm of W.

    If the singular values do not differ too much, it also equals U V^T of LAPACK; small ones make that ill-posed.
    """
    block, out = BlockInfo(0, *shape, np.ones(0)), np.empty(shape)
    for matrix in (one for seed in SEEDS for one in random_matrices(seed, shape)):
        Nuclear.subgradient(matrix.ravel(), Nuclear(strength=1.0).numbers[0], block, out.ravel())
        u, s, v = np.linalg.svd(matrix, full_matrices=False)
        assert np.linalg.norm(out, 2) <= 1 + 1e-11
        assert (out * matrix).sum() == pytest.approx(s.sum(), rel=1e-12)
        if s[0] < 1e6 * s[-1]:
            np.testing.assert_allclose(out, u @ v, atol=1e-13 * s[0] / s[-1] + 1e-11)


@pytest.mark.parametrize("matrix", matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_subgradient_in_either_precision(matrix, dtype):
    """Zero singular values, whose vectors are noise, are ignored: the subgradient at a zero matrix is 0."""
    w, out = matrix.astype(dtype).ravel(), np.empty(matrix.size, dtype)
    Nuclear.subgradient(w, Nuclear(strength=0.5).numbers[0], BlockInfo(0, *matrix.shape, np.ones(0)), out)
    slack = 1e-11 if dtype == "float64" else 1e-5
    singular = np.linalg.svd(out.reshape(matrix.shape).astype(float), compute_uv=False)
    assert singular[0] <= 0.5 * (1 + slack)
    rank = np.linalg.matrix_rank(matrix, rtol=1e-13 if dtype == "float64" else 2e-6)
    assert np.count_nonzero(singular > 1e-3) == rank
    norm = np.linalg.norm(w.reshape(matrix.shape).astype(float), "nuc") / 2
    assert abs(out.astype(float) @ w - norm) <= slack * max(1.0, norm)


def test_nuclear_rejects_a_vector(make_problem, regularizer):
    with pytest.raises(UserError, match=r"regularizer.*nuclear"):
        make_problem(regularizer("nuclear"), features=12)
