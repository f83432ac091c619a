"""The paper's regularizers and constraints, by their mathematics; the others are in test_regularizers_more.py."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fco_cli.errors import UserError
from fco_cli.problem.regularizers import OneBlock, all_regularizers
from fco_cli.problem.regularizers.balls import L1Ball
from fco_cli.problem.regularizers.nuclear import Nuclear, orthogonal_rows, wide

NAMES = ["none", "l1", "elastic_net", "l2_squared", "nuclear", "l1_ball", "l2_ball"]
CONSTRAINTS = [name for name in NAMES if all_regularizers()[name].constraint]
PENALTIES = [name for name in NAMES if not all_regularizers()[name].constraint]
SHAPE = (3, 4)  # of the regularised block; a bias follows it
SIZE = 13

vectors = arrays(float, SIZE, elements=st.floats(-50, 50))
times = st.one_of(st.just(0.0), st.floats(1e-3, 20))


class Problems(dict):
    def __repr__(self):  # short: hypothesis prints the arguments of a failure
        return "problems"


@pytest.fixture(scope="module")
def problems(make_problem, regularizer):
    return Problems((name, make_problem(regularizer(name), features=12, weights_shape=SHAPE)) for name in NAMES)


def scaled(numbers, factors):
    """Records with every number of a job multiplied by its factor."""
    out = numbers.copy()
    for name in out.dtype.names:
        out[name] *= factors
    return out


def prox(problem, z, t):
    return problem.prox(z[None], np.array([t]), problem.regularizer.numbers)[0]


def psi(problem, w):
    return problem.psi(w[None], problem.regularizer.numbers)[0]


@pytest.mark.parametrize("name", NAMES)
@given(z=vectors, other=vectors, t=times)
def test_three_point_inequality(problems, name, z, other, t):
    """p = prox(z) has t psi(u) + |u - z|^2/2 >= t psi(p) + |p - z|^2/2 + |u - p|^2/2 for every u: only the prox has.

    The last term is due to strong convexity; without convexity p is a minimiser and no more is known.
    """
    problem = problems[name]
    u = prox(problem, other, 1.0) if problem.regularizer.constraint else other  # a constraint compares inside its set
    p = prox(problem, z, t)
    left = t * psi(problem, u) + ((u - z) ** 2).sum() / 2
    right = t * psi(problem, p) + ((p - z) ** 2).sum() / 2
    if problem.regularizer.convex:
        right += ((u - p) ** 2).sum() / 2
    assert left >= right - 1e-9 * (1 + abs(left) + abs(right))


@pytest.mark.parametrize("name", NAMES)
@given(z=vectors, t=times)
def test_bias_is_untouched(problems, name, z, t):
    assert prox(problems[name], z, t)[-1] == z[-1]


@pytest.mark.parametrize("name", PENALTIES)
@given(z=vectors)
def test_no_time_is_no_penalty(problems, name, z):
    np.testing.assert_array_equal(prox(problems[name], z, 0.0), z)


@pytest.mark.parametrize("name", CONSTRAINTS)
@given(z=vectors, t=times)
def test_projection_lands_inside_once_and_for_all(problems, name, z, t):
    """Whatever t is, 0 included; a second projection changes nothing but rounding."""
    norm = {"l1_ball": 1, "l2_ball": 2}.get(name)
    p = prox(problems[name], z, t)
    if norm:
        assert np.linalg.norm(p[:-1], norm) <= problems[name].regularizer.radius * (1 + 1e-12)
    np.testing.assert_allclose(prox(problems[name], p, 1.0), p, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(prox(problems[name], z, 0.0), p)


@pytest.mark.parametrize("name", NAMES)
def test_stack_gives_the_bits_of_one_by_one(problems, regularizer, name):
    random, problem = np.random.default_rng(3), problems[name]
    z, t = 3 * random.standard_normal((6, SIZE)), np.array([0, 0.1, 0.5, 1, 2, 8.0])
    numbers = scaled(np.repeat(problem.regularizer.numbers, 6), random.uniform(0.5, 2, 6))
    stacked, primal = problem.prox(z, t, numbers), np.empty_like(z)
    problem.to_primal(z, t, problem.geometry(numbers), primal)
    for j in range(6):
        one = slice(j, j + 1)
        np.testing.assert_array_equal(stacked[one], problem.prox(z[one], t[one], numbers[one]))
    np.testing.assert_array_equal(stacked, primal)  # the Euclidean mirror map: to_primal is the prox


@pytest.mark.parametrize("name", [name for name in NAMES if all_regularizers()[name].subgradient])
@given(w=vectors, u=vectors, zeros=st.integers(0, 12))
def test_subgradient_inequality(problems, name, w, u, zeros):
    """psi(u) >= psi(w) + <g, u - w>, also at the kinks."""
    problem = problems[name]
    w = np.where(np.arange(SIZE) < zeros, 0.0, w)
    g = np.zeros((1, SIZE))
    problem.psi_subgradient(w[None], problem.geometry(problem.regularizer.numbers), g)
    left, right = psi(problem, u), psi(problem, w) + g[0] @ (u - w)
    if problem.regularizer.convex:
        assert left >= right - 1e-9 * (1 + abs(left) + abs(right))
    assert g[0, -1] == 0


def test_a_constraint_has_no_subgradient_to_offer():
    for name in CONSTRAINTS:
        assert all_regularizers()[name].subgradient is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_divergence_stays_visible(problems, name, bad):
    """What is not finite raises nothing, and does not come back as a finite vector that looks like a model."""
    one, all_of_them = np.linspace(-1, 1, SIZE), np.full(SIZE, bad)
    one[4] = bad
    for z in (one, all_of_them):
        assert not np.isfinite(prox(problems[name], z, 0.5)[:-1]).all()
        psi(problems[name], z)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("huge", [1e30, 1e80, 1e154, 1e160, 1e300])
def test_huge_is_right_or_not_finite(problems, name, huge):
    """The square of 1e300 is infinite: a prox that meets it must not come back with a small vector."""
    problem = problems[name]
    one, all_of_them = np.linspace(-1, 1, SIZE), np.linspace(-1, 1, SIZE) * huge
    one[4] = huge
    for z in (one, all_of_them):
        p = prox(problem, z, 0.5)[:-1]
        # only a quadratic part of psi is felt by a huge number
        quadratic = {"l2_squared": "strength", "elastic_net": "l2_strength"}.get(name)
        shrunk = z[:-1] / (1 + 0.5 * getattr(problem.regularizer, quadratic)) if quadratic else z[:-1]
        assert not np.isfinite(p).all() or np.linalg.norm(p / huge - shrunk / huge) < 1e-9


cvxpy_cases = [(0.0, 1), (0.3, 2), (1.0, 3), (4.0, 4)]


@pytest.mark.parametrize("name", ["l1", "elastic_net", "l2_squared", "nuclear", "l1_ball", "l2_ball"])
def test_agrees_with_cvxpy(problems, name):
    import cvxpy as cp

    problem = problems[name]
    numbers = problem.regularizer
    w = cp.Variable(SHAPE)
    flat = cp.vec(w, order="C")
    term, constraints = {
        "l1": lambda: (numbers.strength * cp.norm1(flat), []),
        "elastic_net": lambda: (
            numbers.strength * cp.norm1(flat) + numbers.l2_strength / 2 * cp.sum_squares(flat),
            [],
        ),
        "l2_squared": lambda: (numbers.strength / 2 * cp.sum_squares(flat), []),
        "nuclear": lambda: (numbers.strength * cp.normNuc(w), []),
        "l1_ball": lambda: (0, [cp.norm1(flat) <= numbers.radius]),
        "l2_ball": lambda: (0, [cp.norm2(flat) <= numbers.radius]),
    }[name]()
    for t, seed in cvxpy_cases:
        z = 2 * np.random.default_rng(seed).standard_normal(SIZE)
        cp.Problem(cp.Minimize(t * term + cp.sum_squares(w - z[:-1].reshape(SHAPE)) / 2), constraints).solve()
        np.testing.assert_allclose(prox(problem, z, t)[:-1], w.value.ravel(), atol=2e-5)


# The l1 ball: its threshold is found by iteration, which must end.


@given(
    z=arrays(float, 12, elements=st.sampled_from([0.0, 0.1, 0.3, -0.3, 1 / 3, 0.7, -0.7, 1.1, 2.3])),
    unit=st.sampled_from([1.0, 1e-3, 1 / 3, 1e7]),
)
def test_l1_ball_with_ties(problems, z, unit):
    """Equal entries sit exactly at the threshold, where rounding decides which side they are on."""
    problem = problems["l1_ball"]
    z = np.append(z * unit, 0.0)
    p = prox(problem, z, 1.0)
    norm, radius = np.abs(z).sum(), problem.regularizer.radius
    np.testing.assert_allclose(np.abs(p).sum(), min(norm, radius), atol=1e-14 * max(norm, 1))
    assert (np.sign(p) * np.sign(z) >= 0).all()


def test_l1_ball_ends_where_an_entry_is_at_the_threshold(problems):
    """0.1 is the threshold itself here: rounding puts the entry above and below it in turn."""
    z = np.zeros((1, SIZE))
    z[0, [0, 2]] = 0.3, -0.1
    p = problems["l1_ball"].prox(z, np.ones(1), L1Ball(radius=0.2).numbers)[0]
    np.testing.assert_allclose(p[[0, 2]], [0.2, 0], atol=1e-15)


# The nuclear norm: its singular value decomposition is our own.


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
    rows[3], rows[1] = rows[0], 0  # a repeated row and an empty one
    yield rows


def harder_matrices():
    """Also what is hard for the eigenvectors of A A^T, whose eigenvalues are squares."""
    yield from matrices()
    random = np.random.default_rng(6)
    for values in (
        np.logspace(0, -12, 32),
        np.logspace(0, -60, 32),
        np.repeat([3.0, 2.0, 0.5, 0.0], 8),
        np.concatenate([[1.0], np.full(31, 1e-7)]),  # squares equal but for the rounding beside the first
        np.concatenate([np.linspace(5, 40, 16), np.linspace(0.1, 1, 16)]),  # as in the paper's task
    ):
        left, right = (np.linalg.qr(random.standard_normal((32, 32)))[0] for _ in range(2))
        yield (left * values) @ right
    yield np.diag(np.logspace(0, -12, 9))  # orthogonal already
    yield np.eye(9, 31) + np.eye(9, 31, k=1)  # A A^T is tridiagonal already


@pytest.mark.parametrize("matrix", harder_matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nuclear_against_lapack(matrix, dtype):
    """Thresholds from 0 to beyond all singular values: the smaller ones demand more of the decomposition."""
    z, p = matrix.astype(dtype).ravel(), Nuclear(strength=0.5).numbers[0]
    matrix, out, scale = z.astype(float).reshape(matrix.shape), np.empty_like(z), max(1.0, np.linalg.norm(matrix))
    slack = (1e-10 if dtype == "float64" else 1e-6) * scale
    for t in (0.0, 1e-9, 1e-5, 1e-3, 0.2, 1.0, 100.0):
        Nuclear.prox(z, t, p, OneBlock(0, *matrix.shape), out)
        np.testing.assert_allclose(
            out.reshape(matrix.shape), singular_value_thresholding(matrix, t / 2), rtol=0, atol=slack
        )
    value = Nuclear.value(z, p, OneBlock(0, *matrix.shape))
    assert abs(value - np.linalg.norm(matrix, "nuc") / 2) <= 1e-10 * scale


@pytest.mark.parametrize("unit", [1e-150, 1e-60, 1e60, 1e150])
def test_nuclear_whatever_the_unit(unit):
    p, out = Nuclear(strength=0.5).numbers[0], np.empty(32 * 32)
    for matrix in harder_matrices():
        for t in (1e-3, 1.0):
            Nuclear.prox(unit * matrix.ravel(), unit * t, p, OneBlock(0, *matrix.shape), out[: matrix.size])
            expected = singular_value_thresholding(matrix, t / 2).ravel()
            np.testing.assert_allclose(out[: matrix.size] / unit, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("matrix", harder_matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
def test_rows_become_orthogonal_by_rotation(matrix):
    """Those of tiny singular values too, which the eigenvectors of A A^T cannot tell apart."""
    a, norm = wide(matrix.ravel(), OneBlock(0, *matrix.shape))
    rows = a.copy()
    squared = orthogonal_rows(rows, 0.0)
    np.testing.assert_allclose(norm * np.linalg.norm(a), np.linalg.norm(matrix), rtol=1e-14)
    np.testing.assert_allclose(rows.T @ rows, a.T @ a, atol=1e-13)  # rotations leave this alone
    np.testing.assert_allclose(squared, (rows**2).sum(axis=1), rtol=1e-12)
    lengths = np.sqrt(squared)
    counted = lengths > 1e-15
    cosines = (rows @ rows.T)[np.ix_(counted, counted)] / np.outer(lengths, lengths)[np.ix_(counted, counted)]
    np.testing.assert_allclose(cosines, np.eye(counted.sum()), atol=1e-11)


@pytest.mark.parametrize("matrix", matrices(), ids=lambda matrix: "x".join(map(str, matrix.shape)))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nuclear_subgradient_is_one(matrix, dtype):
    """A subgradient of the nuclear norm has no singular value above 1 and a product with W that is its norm."""
    w, out = matrix.astype(dtype).ravel(), np.empty(matrix.size, dtype)
    Nuclear.subgradient(w, Nuclear(strength=0.5).numbers[0], OneBlock(0, *matrix.shape), out)
    slack = 1e-7 if dtype == "float64" else 1e-3
    assert np.linalg.norm(out.reshape(matrix.shape), 2) <= 0.5 * (1 + slack)
    norm = np.linalg.norm(matrix, "nuc") / 2
    assert abs(out @ w - norm) <= slack * max(1.0, norm)


# Their numbers.


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_checked_and_named(name):
    kind = all_regularizers()[name]
    for key in ("strength", "l2_strength", "radius"):
        if key in inspect.signature(kind).parameters:
            others = {
                k: 1.0
                for k in inspect.signature(kind).parameters
                if k not in ("name", key) and k in ("strength", "l2_strength", "radius")
            }
            for bad in (-1.0, np.nan, np.inf):
                with pytest.raises(UserError, match=rf"^regularizer\.{key}: got "):
                    kind(**{key: bad}, **others)


@pytest.mark.parametrize("name", ["l1_ball", "l2_ball"])
def test_radius_zero_is_refused_and_strength_zero_is_not(regularizer, name):
    with pytest.raises(UserError, match=r"radius.*> 0"):
        regularizer(name, radius=0.0)
    assert regularizer("l1", strength=0.0).strength == 0


def test_nuclear_refuses_a_vector(make_problem, regularizer):
    with pytest.raises(UserError, match=r"regularizer.*nuclear"):
        make_problem(regularizer("nuclear"), features=12)
