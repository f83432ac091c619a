"""Mathematical properties of all registered regularizers. Each regularizer needs a case here.

test_regularizers_each.py tests single regularizers, test_regularizers_nuclear.py the singular value decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from omegaconf import OmegaConf

from fco_cli.problem.regularizers import BlockInfo, Regularizer, all_regularizers
from fco_cli.problem.regularizers.blockwise import Blockwise
from fco_cli.problem.regularizers.nuclear import Nuclear, NuclearBall
from fco_cli.problem.regularizers.ordered import L0, L0Ball, Monotone, Slope
from fco_cli.problem.regularizers.penalties import L1, ElasticNet, L2Squared, NoRegularizer
from fco_cli.problem.regularizers.sets import Box, L1Ball, L2Ball, LinfBall, NonNegative, Simplex
from fco_cli.problem.regularizers.structured import FusedLasso, GroupLasso, L2Norm, TotalVariation
from fco_cli.testing.regularizers import (
    JOBS,
    REGULARIZER_CHECKS,
    SHAPE,
    assert_three_points,
    check_divergence_is_preserved,
    check_stack_equals_alone,
    points,
    scale_numbers,
)

pytestmark = pytest.mark.usefixtures("both_ways")

SIZE = 12
COUNTS = {"group_size": 0, "nonzeros": 0}
BY_FEATURE = ("factors", "groups")  # keys that are optional in YAML


@dataclass
class Case:
    """A regularizer; psi for cvxpy as (penalty, constraints), if convex; the conjugate psi*, if known.

    `powers` defines how the parameters scale: with each multiplied by a**power, the prox of a z is a times that of z.
    The default power, that of a radius or of the strength of a norm, is 1.
    """

    regularizer: Regularizer
    psi: Callable[[Any], tuple[Any, list[Any]]] | None = None
    conjugate: Callable[[np.ndarray], float] | None = None
    powers: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the regularizer, with a suffix if it has numbers per feature."""
        given = any(getattr(self.regularizer, key, None) for key in BY_FEATURE)
        return f"{self.regularizer.name} by feature" if given else self.regularizer.name


def indicator(inside: bool) -> float:
    return 0.0 if inside else np.inf


def groups(v):
    return [v[low : low + 4] for low in range(0, SIZE, 4)]


def slope_weights(case: Slope) -> np.ndarray:
    return np.linspace(case.strength * (1 + case.ramp), case.strength, SIZE)


def slope_value(case: Slope, w):
    """Return psi as a sum of (differences of weights) * (sums of the largest entries) for cvxpy."""
    steps = -np.diff(np.append(slope_weights(case), 0))
    return sum(step * cp.sum_largest(cp.abs(w), k + 1) for k, step in enumerate(steps))


def matrix(w):
    return cp.reshape(w, SHAPE, order="C")


def largest_singular_value(g: np.ndarray) -> float:
    return float(np.linalg.norm(g.reshape(SHAPE), 2))


TIGHT = 1e-7
NAMES = [f"x{k}" for k in range(SIZE)]
FACTORS = np.array([0, 1, 1, 1, 1, 2.5] + [1] * 6)
SLOPE = Slope(strength=0.3, ramp=1.5)
CASES = [
    Case(NoRegularizer(), lambda w: (0, []), lambda g: indicator(not g.any())),
    Case(L1(strength=0.7), lambda w: (0.7 * cp.norm1(w), []), lambda g: indicator(abs(g).max() <= 0.7 + TIGHT)),
    Case(
        ElasticNet(strength=0.7, l2_strength=0.4),
        lambda w: (0.7 * cp.norm1(w) + 0.2 * cp.sum_squares(w), []),
        lambda g: (np.maximum(abs(g) - 0.7, 0) ** 2).sum() / 0.8,
        powers={"l2_strength": 0},
    ),
    Case(
        L1(strength=0.7, factors={"x0": 0, "x5": 2.5}),
        lambda w: (0.7 * FACTORS @ cp.abs(w), []),
        lambda g: indicator((abs(g) <= 0.7 * FACTORS + TIGHT).all()),
    ),
    Case(
        ElasticNet(strength=0.7, l2_strength=0.4, factors={"x0": 0, "x5": 2.5}),
        lambda w: (0.7 * FACTORS @ cp.abs(w) + 0.2 * FACTORS @ cp.square(w), []),
        powers={"l2_strength": 0},
    ),
    Case(
        L2Squared(strength=0.7, factors={"x0": 0, "x5": 2.5}),
        lambda w: (0.35 * FACTORS @ cp.square(w), []),
        powers={"strength": 0},
    ),
    Case(
        L2Squared(strength=0.7),
        lambda w: (0.35 * cp.sum_squares(w), []),
        lambda g: (g**2).sum() / 1.4,
        powers={"strength": 0},
    ),
    Case(
        Nuclear(strength=0.7),
        lambda w: (0.7 * cp.normNuc(matrix(w)), []),
        lambda g: indicator(largest_singular_value(g) <= 0.7 + TIGHT),
    ),
    Case(
        L2Norm(strength=0.7), lambda w: (0.7 * cp.norm2(w), []), lambda g: indicator(np.linalg.norm(g) <= 0.7 + TIGHT)
    ),
    Case(
        GroupLasso(strength=0.6, group_size=4),
        lambda w: (0.6 * sum(cp.norm2(part) for part in groups(w)), []),
        lambda g: indicator(max(np.linalg.norm(part) for part in groups(g)) <= 0.6 + TIGHT),
        powers=COUNTS,
    ),
    Case(
        GroupLasso(
            strength=0.6,
            group_size=1,
            groups=dict.fromkeys(NAMES[::2], "even") | dict.fromkeys(NAMES[1::2], "odd") | {"x0": "alone"},
        ),
        lambda w: (0.6 * (cp.abs(w[0]) + 5**0.5 * cp.norm2(w[2::2]) + 6**0.5 * cp.norm2(w[1::2])), []),
        lambda g: indicator(
            max(abs(g[0]), np.linalg.norm(g[2::2]) / 5**0.5, np.linalg.norm(g[1::2]) / 6**0.5) <= 0.6 + TIGHT
        ),
        powers=COUNTS,
    ),
    Case(
        TotalVariation(strength=0.5),
        lambda w: (0.5 * cp.tv(w), []),
        lambda g: indicator(abs(g.sum()) < TIGHT and np.abs(np.cumsum(g)).max() <= 0.5 + TIGHT),
    ),
    Case(FusedLasso(strength=0.3, variation_strength=0.4), lambda w: (0.3 * cp.norm1(w) + 0.4 * cp.tv(w), [])),
    Case(
        SLOPE,
        lambda w: (slope_value(SLOPE, w), []),
        lambda g: indicator(np.all(np.cumsum(-np.sort(-abs(g))) <= np.cumsum(slope_weights(SLOPE)) + TIGHT)),
        powers={"ramp": 0},
    ),
    Case(
        Blockwise(blocks={"weights": {"name": "fused_lasso", "strength": 0.2, "variation_strength": 0.1}}),
        lambda w: (0.2 * cp.norm1(w) + 0.1 * cp.tv(w), []),
    ),
    Case(L1Ball(radius=1.5), lambda w: (0, [cp.norm1(w) <= 1.5]), lambda g: 1.5 * abs(g).max()),
    Case(L2Ball(radius=1.5), lambda w: (0, [cp.norm2(w) <= 1.5]), lambda g: 1.5 * np.linalg.norm(g)),
    Case(LinfBall(radius=0.8), lambda w: (0, [cp.norm_inf(w) <= 0.8]), lambda g: 0.8 * abs(g).sum()),
    Case(
        NuclearBall(radius=1.4),
        lambda w: (0, [cp.normNuc(matrix(w)) <= 1.4]),
        lambda g: 1.4 * largest_singular_value(g),
    ),
    Case(
        Box(lower=-0.4, upper=0.9),
        lambda w: (0, [w >= -0.4, w <= 0.9]),
        lambda g: np.maximum(-0.4 * g, 0.9 * g).sum(),
    ),
    Case(NonNegative(), lambda w: (0, [w >= 0]), lambda g: indicator(g.max() <= TIGHT)),
    Case(Simplex(total=1.7), lambda w: (0, [w >= 0, cp.sum(w) == 1.7]), lambda g: 1.7 * g.max()),
    Case(
        Monotone(),
        lambda w: (0, [cp.diff(w) >= 0]),
        lambda g: indicator(abs(g.sum()) < TIGHT and np.cumsum(g).min() > -TIGHT),
    ),
    Case(L0(strength=0.4), powers={"strength": 2}),
    Case(L0Ball(nonzeros=3), powers=COUNTS),
]
BY_NAME = {case.name: case for case in CASES}
every = pytest.mark.parametrize("name", {**dict.fromkeys(all_regularizers()), **BY_NAME})
every_convex = pytest.mark.parametrize("name", [name for name, kind in all_regularizers().items() if kind.convex])
every_penalty = pytest.mark.parametrize("name", [name for name, kind in all_regularizers().items() if kind.subgradient])

vectors = arrays(float, SIZE, elements=st.floats(-50, 50))
times = st.one_of(st.just(0.0), st.floats(1e-3, 20))


def case_of(name: str) -> Case:
    assert name in BY_NAME, f"regularizer {name} has no case: add one to CASES"
    return BY_NAME[name]


def test_every_regularizer_has_a_case_and_a_matching_yaml():
    from fco_cli import conf

    files = {path.stem: path for path in Path(conf.__path__[0]).glob("regularizer/*.yaml")}
    kinds = all_regularizers()
    assert set(kinds) == set(files) == {case.regularizer.name for case in CASES}
    assert len(BY_NAME) == len(CASES)
    for name, kind in kinds.items():
        assert set(OmegaConf.load(files[name])) - {"defaults"} == {one.name for one in fields(kind)} - {
            "name",
            *BY_FEATURE,
        }


@every
@given(z=vectors, other=vectors, t=times)
def test_three_point_inequality_with_hypothesis(stacked, name, z, other, t):
    regularizer = case_of(name).regularizer
    u = stacked.prox(regularizer, other[None], 1.0, SHAPE) if regularizer.constraint else other[None]
    assert_three_points(regularizer, z[None], u, t)


@cache
def in_cvxpy(name: str):
    """Return the prox as a cvxpy problem in (z, t), which is compiled once."""
    w, z, t = cp.Variable(SIZE), cp.Parameter(SIZE), cp.Parameter(nonneg=True)
    penalty, constraints = case_of(name).psi(w)
    return w, z, t, penalty, cp.Problem(cp.Minimize(t * penalty + cp.sum_squares(w - z) / 2), constraints)


@every_convex
def test_value_and_prox_agree_with_cvxpy(stacked, name):
    regularizer, (w, z, t, penalty, problem) = case_of(name).regularizer, in_cvxpy(name)
    for size, time, seed in [(0.3, 0.8, 1), (1.0, 0.8, 2), (4.0, 0.0, 3), (4.0, 0.3, 4), (2.0, 4.0, 5)]:
        z.value, t.value = size * np.random.default_rng(seed).standard_normal(SIZE), time
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
        result = stacked.prox(regularizer, z.value[None], time, SHAPE)
        np.testing.assert_allclose(result[0], w.value, rtol=0, atol=5e-6)
        w.value = result[0]
        value = stacked.psi(regularizer, result, SHAPE)[0]
        assert value == pytest.approx(float(getattr(penalty, "value", 0.0)), abs=1e-12)


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if case.conjugate])
@pytest.mark.parametrize("t", [0.05, 1.0, 20.0])
def test_moreau_identity(stacked, name, t):
    """If w is the prox of psi and z = w + t g, then <w, g> = psi(w) + psi*(g)."""
    case, z = case_of(name), points(SHAPE, 4)
    w = stacked.prox(case.regularizer, z, t, SHAPE)
    g = (z - w) / t
    left = (w * g).sum(axis=1)
    right = stacked.psi(case.regularizer, w, SHAPE) + np.array([case.conjugate(row) for row in g])
    scale = 1 + (np.abs(w) * np.abs(g)).sum(axis=1)
    assert np.isfinite(right).all()
    np.testing.assert_allclose(left / scale, right / scale, atol=1e-11)


@every
@pytest.mark.parametrize("a", [1e-3, 30.0])
def test_scaling(stacked, name, a):
    """The prox of a z is a times that of z if the parameters scale with their powers."""
    case, z = case_of(name), points(SHAPE, 7)
    numbers = np.repeat(case.regularizer.numbers, JOBS)
    scaled = stacked.prox(case.regularizer, a * z, 0.7, SHAPE, scale_numbers(numbers, a, case.powers))
    expected = a * stacked.prox(case.regularizer, z, 0.7, SHAPE, numbers)
    np.testing.assert_allclose(scaled, expected, rtol=1e-9, atol=1e-12 * a)


@every
@pytest.mark.parametrize("check", REGULARIZER_CHECKS, ids=lambda check: check.__name__)
def test_registered_regularizers_pass_all_checks(name, check):
    check(case_of(name).regularizer)


@pytest.mark.slow
@every
def test_stack_and_divergence_in_single_precision(name):
    regularizer = case_of(name).regularizer
    check_stack_equals_alone(regularizer, dtype="float32")
    check_divergence_is_preserved(regularizer, dtype="float32")


@every
@given(z=vectors, t=times)
def test_prox_at_t_zero(stacked, name, z, t):
    """For a penalty, t = 0 leaves z unchanged; a projection is idempotent and does not depend on t."""
    regularizer = case_of(name).regularizer
    at_once = stacked.prox(regularizer, z[None], 0.0, SHAPE)
    if regularizer.constraint:
        np.testing.assert_array_equal(stacked.prox(regularizer, z[None], t, SHAPE), at_once)
        np.testing.assert_allclose(stacked.prox(regularizer, at_once, 1.0, SHAPE), at_once, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(at_once, z[None])


@pytest.mark.slow
@every
def test_single_precision(stacked, name):
    regularizer, z = case_of(name).regularizer, points(SHAPE, 13, np.float32)
    single = stacked.prox(regularizer, z, 0.5, SHAPE)
    assert single.dtype == np.float32
    expected = stacked.prox(regularizer, z.astype(float), 0.5, SHAPE)
    np.testing.assert_allclose(single, expected, atol=2e-5 * max(1.0, np.abs(expected).max()))


@every_penalty
@given(w=vectors, u=vectors, zeros=st.integers(0, SIZE))
def test_subgradient_inequality(stacked, name, w, u, zeros):
    """Check psi(u) >= psi(w) + <g, u - w>, also where psi is not differentiable."""
    regularizer, w = case_of(name).regularizer, np.where(np.arange(SIZE) < zeros, 0.0, w)[None]
    g = stacked.subgradient(regularizer, w, SHAPE)
    left, right = stacked.psi(regularizer, u[None], SHAPE), stacked.psi(regularizer, w, SHAPE) + (g * (u - w)).sum()
    assert left >= right - 1e-11 * (1 + np.abs(left) + np.abs(right))


# Linear minimization oracles of bounded sets.

BOUNDED = {"l1_ball", "l2_ball", "linf_ball", "box", "simplex", "nuclear_ball"}


def test_sets_with_a_linear_minimization_oracle():
    """All convex bounded sets have one; a blockwise set if each of its pieces has one."""
    assert {case.regularizer.name for case in CASES if case.regularizer.lmo} == BOUNDED
    pieces = {"a": {"name": "l1_ball", "radius": 1.0}, "b": {"name": "box", "lower": 0.0, "upper": 1.0}}
    assert Blockwise(blocks=pieces).lmo is not None
    assert Blockwise(blocks=pieces | {"c": {"name": "non_negative"}}).lmo is None


@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_linear_minimization_oracle(stacked, name):
    """lmo(g) is in the set, and <g, lmo(g)> = -sup <-g, w>, where the supremum is psi*(-g), the support function.

    This includes g = 0. The result is not finite if g is not, and does not depend on the scale of g.
    """
    case, g = case_of(name), points(SHAPE, 16)
    w = stacked.lmo(case.regularizer, g, SHAPE)
    np.testing.assert_allclose(stacked.prox(case.regularizer, w, 1.0, SHAPE), w, rtol=1e-12, atol=1e-12)
    expected = np.array([-case.conjugate(-row) for row in g])
    np.testing.assert_allclose((g * w).sum(axis=1), expected, rtol=1e-12, atol=1e-12)
    for a in (1e-150, 3.0):
        np.testing.assert_allclose(stacked.lmo(case.regularizer, a * g, SHAPE), w, rtol=1e-9, atol=1e-12)
    for bad in (np.nan, np.inf, -np.inf):
        g[:, 3] = bad
        assert not np.isfinite(stacked.lmo(case.regularizer, g, SHAPE)).all(axis=1).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_linear_minimization_oracle_in_machine_code(stacked, name, dtype):
    """Machine code agrees with Python, and a job gives the same bits alone and in a stack."""
    regularizer, g = case_of(name).regularizer, points(SHAPE, 17, dtype)
    factors = np.random.default_rng(8).uniform(0.5, 1.5, JOBS)
    numbers = scale_numbers(np.repeat(regularizer.numbers, JOBS), factors, {})
    in_stack = stacked.lmo(regularizer, g, SHAPE, numbers)
    assert in_stack.dtype == dtype
    for j in range(JOBS):
        np.testing.assert_array_equal(stacked.lmo(regularizer, g[[j]], SHAPE, numbers[[j]])[0], in_stack[j])
        expected, block = np.empty_like(g[j]), BlockInfo(0, *SHAPE, np.ones(SIZE))
        with np.errstate(all="ignore"):
            regularizer.lmo.as_python(g[j], numbers[j], block, expected)
        np.testing.assert_allclose(in_stack[j], expected, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


# Non-finite, huge and tiny entries.


@every
@pytest.mark.parametrize("a", [1e-300, 1e300])
def test_huge_and_tiny_entries(stacked, name, a):
    """The result follows the scaling law, and projections are feasible."""
    case, z = case_of(name), points(SHAPE, 15)
    numbers = np.repeat(case.regularizer.numbers, JOBS)
    result = stacked.prox(case.regularizer, a * z, 0.5, SHAPE)
    expected = stacked.prox(case.regularizer, z, 0.5, SHAPE, scale_numbers(numbers, 1 / a, case.powers))
    unit = np.maximum(np.abs(z), np.abs(expected)).max(axis=1, keepdims=True) + (z == 0).all(axis=1, keepdims=True)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result / a / unit, expected / unit, rtol=0, atol=1e-12)
    if case.regularizer.constraint:
        again = stacked.prox(case.regularizer, result, 0.5, SHAPE)
        np.testing.assert_allclose(again, result, rtol=1e-9, atol=1e-9)
