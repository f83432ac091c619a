"""The projection onto the l1 ball: accuracy against sorting and cvxpy, and feasibility."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.kernels.compiled import specialize
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.mirror import Geometry, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.sets import SAMPLE_MIN_SIZE, SAMPLE_STRIDE, L1Ball, L2Ball, Simplex

pytestmark = pytest.mark.machine_code

COUNT, SIZE = 125_000, 7


def project(z: np.ndarray, radius: np.ndarray, kind=L1Ball) -> np.ndarray:
    """Return the projection of each row of z onto the ball of the corresponding radius."""
    out = np.empty_like(z)
    psi, one_block = kind(radius=1.0), np.array([[0, z.shape[1], z.shape[1], 1, 1, 0]])
    numbers = np.repeat(psi.numbers, len(z))
    numbers.radius = radius
    geometry = Geometry(numbers, Euclidean().numbers, one_block, np.ones(z.shape[1]))
    specialize(to_primal, on_block={"primal": Euclidean().primal(psi)})(z, np.zeros(len(z)), geometry, out)
    return out


def by_sorting(z: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the projection by sorting (Held, Wolfe and Crowder, 1974)."""
    size = np.abs(z)
    ordered = -np.sort(-size, axis=1)
    excess = np.cumsum(ordered, axis=1) - radius[:, None]
    is_kept = ordered * np.arange(1, z.shape[1] + 1) > excess
    last = z.shape[1] - 1 - np.argmax(is_kept[:, ::-1], axis=1)
    theta = excess[np.arange(len(z)), last] / (last + 1)
    theta[size.sum(axis=1) <= radius] = 0
    return np.sign(z) * np.maximum(size - theta[:, None], 0)


random = np.random.default_rng(0)
FAMILIES = {
    "normal": lambda n, d: random.standard_normal((n, d)),
    "heavy tails": lambda n, d: random.standard_cauchy((n, d)),
    "ties": lambda n, d: random.integers(-2, 3, (n, d)).astype(float),
    "all equal": lambda n, d: np.repeat(random.standard_normal((n, 1)), d, axis=1),
    "mostly zeros": lambda n, d: random.standard_normal((n, d)) * (random.random((n, d)) < 0.2),
    "one huge": lambda n, d: random.standard_normal((n, d)) + 1e6 * (np.arange(d) == random.integers(d)),
    "geometric": lambda n, d: random.permuted(2.0 ** -np.arange(d) * np.ones((n, d)), axis=1) * random.random((n, 1)),
    "already inside": lambda n, d: random.standard_normal((n, d)) * 1e-3,
}


@pytest.mark.ci
@pytest.mark.parametrize("family", FAMILIES)
def test_a_million_vectors_agree_with_sorting(family):
    """There are eight families of 125,000 vectors."""
    z = FAMILIES[family](COUNT, SIZE)
    radius = random.uniform(0.01, 5, COUNT)
    scale = np.maximum(np.abs(z).max(axis=1, keepdims=True), 1)
    assert (np.abs(project(z, radius) - by_sorting(z, radius)) / scale).max() < 1e-14


def hidden_from_the_sample(n: int, d: int) -> np.ndarray:
    """Return vectors whose large entries are not in the sample."""
    z = random.standard_normal((n, d)) * 100
    z[:, ::SAMPLE_STRIDE] = random.standard_normal((n, z[:, ::SAMPLE_STRIDE].shape[1])) * 1e-3
    return z


def only_in_the_sample(n: int, d: int) -> np.ndarray:
    """Return vectors whose large entries are all in the sample."""
    z = random.standard_normal((n, d)) * 1e-3
    z[:, ::SAMPLE_STRIDE] *= 1e6
    return z


LONG = FAMILIES | {"hidden from the sample": hidden_from_the_sample, "only in the sample": only_in_the_sample}


@pytest.mark.ci
@pytest.mark.parametrize("family", LONG)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_long_vectors_whose_threshold_starts_from_a_sample(family, dtype):
    size = SAMPLE_MIN_SIZE + 333
    z = LONG[family](20, size).astype(dtype)
    radius = np.geomspace(0.01, 1000, 20)
    scale = np.maximum(np.abs(z).max(axis=1, keepdims=True), 1)
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    expected = by_sorting(z.astype(float), radius)
    assert (np.abs(project(z, radius) - expected) / scale).max() < tolerance


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "order"), [(L1Ball, 1), (L2Ball, 2)])
@pytest.mark.parametrize("family", LONG)
def test_the_result_is_feasible_in_either_precision(family, kind, order, dtype):
    """In single precision too, the norm exceeds the radius by at most 1e-12 (relative), not 1e-7."""
    z = LONG[family](50, SAMPLE_MIN_SIZE + 333).astype(dtype)
    radius = np.geomspace(0.01, 1000, 50)
    norms = np.linalg.norm(project(z, radius, kind).astype(float), order, axis=1)
    assert (norms <= radius * (1 + 1e-12)).all()
    outside = np.linalg.norm(z.astype(float), order, axis=1) > radius
    # Points outside are projected onto the boundary, up to the rounding of each entry.
    rounding = 64 * np.finfo(dtype).eps * np.maximum(np.abs(z).max(axis=1) * z.shape[1], radius)
    assert (radius - norms <= rounding)[outside].all()


def test_small_vectors_agree_with_cvxpy():
    import cvxpy

    for radius in (0.5, 2.0):
        z = np.random.default_rng(int(radius)).standard_normal(6)
        w = cvxpy.Variable(6)
        cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w - z)), [cvxpy.norm1(w) <= radius]).solve(solver="CLARABEL")
        np.testing.assert_allclose(project(z[None], np.array([radius]))[0], w.value, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_entries_stay_non_finite(bad):
    """Diverged runs are detected by their non-finite values."""
    for size in (SIZE, SAMPLE_MIN_SIZE):
        z = np.ones((1, size))
        z[0, 3] = bad
        assert not np.isfinite(project(z, np.ones(1))).all()


def test_the_constraint_violation_is_a_relative_distance():
    data = ClientData(np.zeros((2, 2)), np.zeros(2), np.array([0, 2]))
    problem = Problem(data, Linear(2), Squared(), regularizer=L2Ball(radius=5.0))
    bias = 1e30  # unconstrained, and not part of the norm
    w = np.array([[3.0, 4.0, 0.0], [6.0, 8.0, 0.0], [3.0, 4.0, bias], [6.0, 8.0, bias]])
    violation = problem.constraint_violation(w, np.repeat(problem.regularizer.numbers, 4))
    np.testing.assert_allclose(violation, [0, 0.5, 0, 0.5], atol=1e-15)


def test_the_violation_of_zero_is_relative_to_the_norm_of_its_projection():
    data = ClientData(np.zeros((2, 3)), np.zeros(2), np.array([0, 2]))
    problem = Problem(data, Linear(3), Squared(), regularizer=Simplex(total=1.0))
    np.testing.assert_allclose(problem.constraint_violation(np.zeros((1, 4)), problem.regularizer.numbers), 1)
