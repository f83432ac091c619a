"""Every regularizer beyond the basic ones, by its mathematics; a new one is a new line in CASES."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from sklearn.isotonic import isotonic_regression

from fco_cli.errors import UserError
from fco_cli.problem.compiled import specialise
from fco_cli.problem.layout import Block, Layout
from fco_cli.problem.mirror import Geometry, psi_subgradient, psi_value, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.problem.regularizers.blockwise import Blockwise
from fco_cli.problem.regularizers.boxes import Box, LinfBall, NonNegative, Simplex
from fco_cli.problem.regularizers.cardinality import L0, L0Ball
from fco_cli.problem.regularizers.groups import GroupLasso, L2Norm
from fco_cli.problem.regularizers.nuclear_ball import NuclearBall
from fco_cli.problem.regularizers.ordered import Monotone, Slope
from fco_cli.problem.regularizers.variation import FusedLasso, TotalVariation

VECTOR, MATRIX = (12,), (3, 4)


@dataclass
class Case:
    """A regularizer, the shape of its block, psi for cvxpy as (penalty, constraints), and psi* where it is known."""

    regularizer: Regularizer
    psi: Callable[[Any], tuple[Any, list[Any]]]
    conjugate: Callable[[np.ndarray], float] | None = None
    shape: tuple[int, ...] = VECTOR


def indicator(inside: bool) -> float:
    return 0.0 if inside else np.inf


def groups(v):
    return [v[low : low + 4] for low in range(0, 12, 4)]


def slope_weights(case: Slope) -> np.ndarray:
    return np.linspace(case.strength * (1 + case.ramp), case.strength, 12)


def slope_value(case: Slope, w):
    """A sum of (differences of weights) * (sums of the largest entries), all of which cvxpy knows."""
    steps = -np.diff(np.append(slope_weights(case), 0))
    return sum(step * cp.sum_largest(cp.abs(w), k + 1) for k, step in enumerate(steps))


def singular_values(g: np.ndarray) -> np.ndarray:
    return np.linalg.svd(g.reshape(MATRIX), compute_uv=False)


TIGHT = 1e-7
SLOPE = Slope(strength=0.3, ramp=1.5)
CASES = [
    Case(
        L2Norm(strength=0.7), lambda w: (0.7 * cp.norm2(w), []), lambda g: indicator(np.linalg.norm(g) <= 0.7 + TIGHT)
    ),
    Case(
        GroupLasso(strength=0.6, group_size=4),
        lambda w: (0.6 * sum(cp.norm2(part) for part in groups(w)), []),
        lambda g: indicator(max(np.linalg.norm(part) for part in groups(g)) <= 0.6 + TIGHT),
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
    ),
    Case(
        Monotone(),
        lambda w: (0, [cp.diff(w) >= 0]),
        lambda g: indicator(abs(g.sum()) < TIGHT and np.cumsum(g).min() > -TIGHT),
    ),
    Case(
        Box(lower=-0.4, upper=0.9),
        lambda w: (0, [w >= -0.4, w <= 0.9]),
        lambda g: np.maximum(-0.4 * g, 0.9 * g).sum(),
    ),
    Case(LinfBall(radius=0.8), lambda w: (0, [cp.norm_inf(w) <= 0.8]), lambda g: 0.8 * abs(g).sum()),
    Case(NonNegative(), lambda w: (0, [w >= 0]), lambda g: indicator(g.max() <= TIGHT)),
    Case(Simplex(total=1.7), lambda w: (0, [w >= 0, cp.sum(w) == 1.7]), lambda g: 1.7 * g.max()),
    Case(
        NuclearBall(radius=1.4),
        lambda w: (0, [cp.normNuc(cp.reshape(w, MATRIX, order="C")) <= 1.4]),
        lambda g: 1.4 * singular_values(g).max(),
        shape=MATRIX,
    ),
    Case(
        Blockwise(blocks={"kernel": {"name": "fused_lasso", "strength": 0.2, "variation_strength": 0.1}}),
        lambda w: (0.2 * cp.norm1(w) + 0.1 * cp.tv(w), []),
    ),
]
names = [case.regularizer.name for case in CASES]
every_case = pytest.mark.parametrize("case", CASES, ids=names)
JOBS = 24


def multiplied(numbers, factors):
    """Records with every number of a job multiplied by its factor."""
    out = numbers.copy()
    for name in out.dtype.names:
        out[name] *= factors
    return out


def geometry(regularizer: Regularizer, shape: tuple[int, ...], numbers: np.ndarray | None = None, jobs: int = JOBS):
    layout = Layout((Block("kernel", shape), Block("bias", (1,), regularised=False)))
    numbers = np.repeat(regularizer.numbers, jobs) if numbers is None else numbers
    return Geometry(numbers, Euclidean().numbers, regularizer.table(layout))


def prox(regularizer: Regularizer, z: np.ndarray, t, shape=VECTOR, numbers=None) -> np.ndarray:
    """For stacked z [J, n], through the same template as the algorithms use; the bias must come out untouched."""
    padded = np.hstack([z, np.full((len(z), 1), 7, z.dtype)])
    out = np.empty_like(padded)
    t = np.full(len(z), t, dtype=float) if np.ndim(t) == 0 else t
    where = geometry(regularizer, shape, numbers, len(z))
    specialise(to_primal, primal=Euclidean().primal(regularizer))(padded, t, where, out)
    assert (out[:, -1] == 7).all()
    return out[:, :-1]


def psi(regularizer: Regularizer, w: np.ndarray, shape=VECTOR) -> np.ndarray:
    total = np.zeros(len(w))
    padded = np.hstack([w, np.ones((len(w), 1))])
    specialise(psi_value, value=regularizer.value)(padded, geometry(regularizer, shape, jobs=len(w)), total)
    return total


def points(seed: int = 0, dtype=float) -> np.ndarray:
    """Random points of many sizes, with zeros, ties and points far out and close to 0."""
    z = np.random.default_rng(seed).standard_normal((JOBS, 12)) * np.repeat([0.01, 0.3, 2.0, 50.0], JOBS // 4)[:, None]
    z[::5, 3:6] = 0
    z[1::5] = np.round(z[1::5])
    z[2] = 0
    return z.astype(dtype)


@every_case
@pytest.mark.parametrize("t", [0.0, 0.05, 1.0, 20.0])
def test_prox_satisfies_the_three_point_inequality(case, t):
    """t psi(w) + |w - z|^2 / 2 + |u - w|^2 / 2 <= t psi(u) + |u - z|^2 / 2 for all u: what makes w the prox."""
    z = points()
    w = prox(case.regularizer, z, t, case.shape)
    assert np.isfinite(w).all()
    # points of dom psi: for a constraint, other projections
    others = prox(case.regularizer, points(1), 1.0, case.shape)
    for u in (others, (others + w) / 2, w if case.regularizer.constraint else np.zeros_like(w)):
        left = t * psi(case.regularizer, w, case.shape) + ((w - z) ** 2).sum(1) / 2 + ((u - w) ** 2).sum(1) / 2
        right = t * psi(case.regularizer, u, case.shape) + ((u - z) ** 2).sum(1) / 2
        assert (left <= right + 1e-10 * (1 + np.abs(right))).all()


@every_case
def test_value_and_prox_agree_with_cvxpy(case):
    z, t = np.random.default_rng(3).standard_normal((4, 12)) * [[0.3], [1], [1], [4]], 0.8
    mine = prox(case.regularizer, z, t, case.shape)
    values = psi(case.regularizer, mine, case.shape)
    for i in range(4):
        w = cp.Variable(12)
        penalty, constraints = case.psi(w)
        cp.Problem(cp.Minimize(t * penalty + cp.sum_squares(w - z[i]) / 2), constraints).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(mine[i], w.value, atol=2e-5)
        w.value = mine[i]
        assert values[i] == pytest.approx(float(getattr(case.psi(w)[0], "value", 0.0)), abs=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if case.conjugate], ids=lambda case: case.regularizer.name)
@pytest.mark.parametrize("t", [0.05, 1.0, 20.0])
def test_moreau_identity(case, t):
    """z = w + t g with w the prox of psi and g that of psi*, that is <w, g> = psi(w) + psi*(g)."""
    z = points(4)
    w = prox(case.regularizer, z, t, case.shape)
    g = (z - w) / t
    left = (w * g).sum(axis=1)
    right = psi(case.regularizer, w, case.shape) + np.array([case.conjugate(row) for row in g])
    scale = 1 + (np.abs(w) * np.abs(g)).sum(axis=1)
    assert np.isfinite(right).all()
    np.testing.assert_allclose(left / scale, right / scale, atol=1e-9)


@every_case
def test_prox_is_firmly_non_expansive(case):
    """|prox(x) - prox(y)|^2 <= <prox(x) - prox(y), x - y>."""
    x, y = points(5), points(6)
    change = prox(case.regularizer, x, 0.7, case.shape) - prox(case.regularizer, y, 0.7, case.shape)
    assert ((change**2).sum(1) <= (change * (x - y)).sum(1) * (1 + 1e-12) + 1e-12).all()


@every_case
@pytest.mark.parametrize("a", [1e-3, 30.0])
def test_behaviour_under_scaling(case, a):
    """a * prox_{t psi}(z) = prox_{a t psi}(a z) where psi(a w) = a psi(w); a set scales with its numbers."""
    z, t, regularizer = points(7), 0.7, case.regularizer
    numbers = np.repeat(regularizer.numbers, JOBS)
    if regularizer.constraint:
        scaled = prox(regularizer, a * z, t, case.shape, multiplied(numbers, a))
    else:
        scaled = prox(regularizer, a * z, a * t, case.shape)
    np.testing.assert_allclose(scaled, a * prox(regularizer, z, t, case.shape), rtol=1e-9, atol=1e-11 * a)


NOT_CONVEX = [L0(strength=0.4), L0Ball(nonzeros=3)]


@pytest.mark.parametrize("regularizer", [*(case.regularizer for case in CASES), *NOT_CONVEX], ids=lambda one: one.name)
def test_stacked_jobs_equal_jobs_one_by_one(regularizer):
    """To the last bit, with numbers and times that differ from job to job; t = 0 leaves points of dom psi alone."""
    shape = MATRIX if regularizer.name == "nuclear_ball" else VECTOR
    random, z = np.random.default_rng(8), points(9)
    t = random.uniform(0, 2, JOBS)
    t[::4] = 0
    numbers = np.repeat(regularizer.numbers, JOBS)
    if regularizer.name not in ("group_lasso", "l0_ball", "blockwise"):  # these hold counts
        numbers = multiplied(numbers, random.uniform(0.5, 1.5, JOBS))
    stacked = prox(regularizer, z, t, shape, numbers)
    for j in range(JOBS):
        assert (prox(regularizer, z[[j]], t[[j]], shape, numbers[[j]])[0] == stacked[j]).all()
    again = prox(regularizer, stacked, np.zeros(JOBS), shape, numbers)
    np.testing.assert_allclose(again, stacked, atol=1e-12)


@pytest.mark.parametrize("regularizer", NOT_CONVEX, ids=lambda one: one.name)
def test_cardinality_finds_the_global_minimum(regularizer):
    """Against every support of six weights."""
    assert not regularizer.convex
    z, t = np.random.default_rng(10).standard_normal((10, 6)) * 2, 1.3
    z[0, 1] = z[0, 2] = -z[0, 0]  # a tie
    w = prox(regularizer, z, t, (6,))
    for row, found in zip(z, w, strict=True):
        costs = []
        for kept in itertools.product([0, 1], repeat=6):
            allowed = regularizer.name == "l0" or sum(kept) <= 3
            price = t * 0.4 * sum(kept) if regularizer.name == "l0" else 0
            costs.append(price + (row[np.array(kept) == 0] ** 2).sum() / 2 if allowed else np.inf)
        price = t * float(psi(regularizer, found[None], (6,))[0])
        assert price + ((row - found) ** 2).sum() / 2 == pytest.approx(min(costs))


@given(z=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), width=st.floats(1e-3, 100))
@settings(max_examples=150, deadline=None)
def test_taut_string_is_optimal(z, width):
    """Its dual certificate: the running sums of z - w stay in the tube, and touch its walls where w jumps."""
    z = np.array(z)
    w = prox(TotalVariation(strength=1.0), z[None], width, z.shape)[0]
    u, tolerance = np.cumsum(z - w), 1e-9 * (1 + np.abs(z).sum())
    assert abs(u[-1]) <= tolerance
    assert np.abs(u).max() <= width + tolerance
    jumps = np.diff(w)
    apart = np.abs(jumps) > tolerance
    np.testing.assert_allclose(u[:-1][apart], -width * np.sign(jumps[apart]), atol=tolerance)


@given(z=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_monotone_agrees_with_scikit_learn(z):
    w = prox(Monotone(), np.array(z)[None], 1.0, (len(z),))[0]
    np.testing.assert_allclose(w, isotonic_regression(np.array(z)), atol=1e-9)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.regularizer.subgradient], ids=lambda c: c.regularizer.name
)
def test_subgradient_supports_psi(case):
    """psi(u) >= psi(w) + <g, u - w>."""
    w, u = np.hstack([points(11), np.ones((JOBS, 1))]), points(12)
    g = np.zeros_like(w)
    specialise(psi_subgradient, subgradient=case.regularizer.subgradient)(w, geometry(case.regularizer, case.shape), g)
    assert (g[:, -1] == 0).all()
    w, g = w[:, :-1], g[:, :-1]
    gap = psi(case.regularizer, u) - psi(case.regularizer, w) - (g * (u - w)).sum(axis=1)
    assert (gap >= -1e-9).all()


def test_blockwise_gives_every_block_its_own():
    """Three blocks, three pieces, one of them a constraint: the sum of the parts."""
    pieces = {
        "first": {"name": "l1", "strength": 0.5},
        "second": {"name": "simplex", "total": 1.0},
        "third": {"name": "elastic_net", "strength": 0.1, "l2_strength": 2.0},
    }
    regularizer = Blockwise(blocks=pieces)
    layout = Layout(
        (Block("third", (3,)), Block("bias", (2,), regularised=False), Block("first", (4,)), Block("second", (5,)))
    )
    regularizer.check_layout(layout)
    where = Geometry(np.repeat(regularizer.numbers, 2), Euclidean().numbers, regularizer.table(layout))
    z, t = np.random.default_rng(0).standard_normal((2, 14)), np.array([0.4, 1.1])
    out, total = np.empty_like(z), np.zeros(2)
    specialise(to_primal, primal=Euclidean().primal(regularizer))(z, t, where, out)
    specialise(psi_value, value=regularizer.value)(out, where, total)
    for j in range(2):
        soft = lambda v, by: np.sign(v) * np.maximum(np.abs(v) - by, 0)  # noqa: E731
        np.testing.assert_allclose(out[j, :3], soft(z[j, :3], 0.1 * t[j]) / (1 + 2 * t[j]))
        np.testing.assert_array_equal(out[j, 3:5], z[j, 3:5])
        np.testing.assert_allclose(out[j, 5:9], soft(z[j, 5:9], 0.5 * t[j]))
        assert out[j, 9:].sum() == pytest.approx(1)
        assert out[j, 9:].min() >= 0
        w = out[j]
        expected = 0.5 * np.abs(w[5:9]).sum() + 0.1 * np.abs(w[:3]).sum() + (w[:3] ** 2).sum()
        assert total[j] == pytest.approx(expected)
    assert regularizer.kind == "blockwise(first=l1, second=simplex, third=elastic_net)"
    assert regularizer.subgradient is None  # a constraint has none


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Blockwise(blocks={"kernel": {"name": "ridge"}}), "regularizer.blocks.kernel.name: got 'ridge'"),
        (lambda: Blockwise(blocks={"kernel": {"name": "l1", "lambda": 1.0}}), "regularizer.blocks.kernel"),
        (lambda: Blockwise(blocks={}), "regularizer.blocks"),
        (lambda: GroupLasso(strength=1.0, group_size=0), "regularizer.group_size: got 0"),
        (lambda: GroupLasso(strength=1.0, group_size=5).check((12,)), "a divisor of 12"),
        (lambda: Box(lower=1.0, upper=0.0), "regularizer.upper"),
        (lambda: Simplex(total=0.0), "regularizer.total"),
        (lambda: L0Ball(nonzeros=0), "regularizer.nonzeros"),
        (lambda: NuclearBall(radius=1.0).check((12,)), "nuclear_ball"),
        (lambda: Slope(strength=1.0, ramp=-1.0), "regularizer.ramp"),
    ],
)
def test_wrong_numbers_are_refused_by_name(make, words):
    with pytest.raises(UserError) as refusal:
        make()
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_blockwise_must_name_all_regularised_blocks_and_no_others():
    layout = Layout((Block("kernel", (4,)), Block("bias", (1,), regularised=False)))
    with pytest.raises(UserError, match=r"regularizer\.blocks: got 'bias', must be all of kernel"):
        Blockwise(blocks={"bias": {"name": "none"}}).check_layout(layout)


def test_every_regularizer_has_a_yaml_that_fits_it():
    """Found automatically on both sides: a class without a file, or a file without a class, is an oversight."""
    from fco_cli import conf

    files = {path.stem: path for path in Path(conf.__path__[0]).glob("regularizer/*.yaml")}
    kinds = all_regularizers()
    assert set(files) == set(kinds)
    for name, kind in kinds.items():
        keys = set(OmegaConf.load(files[name])) - {"defaults"}
        assert keys == {field.name for field in fields(kind)} - {"name"}


def test_single_precision_keeps_its_type_and_its_answer():
    for regularizer in (SLOPE, TotalVariation(strength=0.5), Monotone(), Simplex(total=1.7)):  # they sum in double
        z = points(13)[6:18]
        single = prox(regularizer, z.astype(np.float32), 0.5)
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, prox(regularizer, z, 0.5), atol=2e-4)
