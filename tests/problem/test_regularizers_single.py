"""Properties of single regularizers, and validation of their parameters."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.isotonic import isotonic_regression

from fco_cli.errors import UserError
from fco_cli.kernels.compiled import specialize
from fco_cli.problem.layout import Block, Layout
from fco_cli.problem.mirror import Geometry, psi_subgradient, psi_value, to_primal
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.problem.regularizers.base import BlockInfo
from fco_cli.problem.regularizers.blockwise import Blockwise
from fco_cli.problem.regularizers.nuclear import Nuclear, NuclearBall
from fco_cli.problem.regularizers.ordered import L0, L0Ball, Monotone, Slope
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.sets import Box, L1Ball, L2Ball, Simplex
from fco_cli.problem.regularizers.structured import GroupLasso, TotalVariation

pytestmark = pytest.mark.usefixtures("both_ways")

# Balls and simplex: exact feasibility, and termination of the iteration for the threshold.


@pytest.mark.parametrize(("kind", "order"), [(L1Ball, 1), (L2Ball, 2)])
@given(z=arrays(float, 12, elements=st.floats(-50, 50)))
def test_projections_onto_balls_are_feasible(stacked, kind, order, z):
    projection = stacked.prox(kind(radius=1.5), z[None], 1.0)[0]
    assert np.linalg.norm(projection, order) <= 1.5 * (1 + 1e-14)


@given(
    z=arrays(float, 12, elements=st.sampled_from([0.0, 0.1, 0.3, -0.3, 1 / 3, 0.7, -0.7, 1.1, 2.3])),
    unit=st.sampled_from([1.0, 1e-3, 1 / 3, 1e7]),
)
def test_l1_ball_with_ties(stacked, z, unit):
    """Equal entries are exactly at the threshold, where rounding decides on which side they are."""
    w = stacked.prox(L1Ball(radius=1.5), unit * z[None], 1.0)[0]
    norm = np.abs(unit * z).sum()
    np.testing.assert_allclose(np.abs(w).sum(), min(norm, 1.5), atol=1e-14 * max(norm, 1))
    assert (np.sign(w) * np.sign(z) >= 0).all()


def test_l1_ball_terminates_if_an_entry_is_at_the_threshold(stacked):
    """The threshold is 0.1, and rounding puts the entry 0.1 alternately above and below it."""
    w = stacked.prox(L1Ball(radius=0.2), np.array([[0.3, 0.0, -0.1, 0.0]]), 1.0)[0]
    np.testing.assert_allclose(w, [0.2, 0, 0, 0], atol=1e-15)


def test_simplex_keeps_its_total_for_huge_entries(stacked):
    """1e300 minus a threshold that rounds to 1e300 would be 0, and the sum would not be the total."""
    z = np.array([[1e300, 0, -1e300], [1e9, 1e9 - 1, 1e9 - 5], [-1e12, -1e12, -1e12]])
    w = stacked.prox(Simplex(total=1.7), z, 1.0)
    np.testing.assert_allclose(w, [[1.7, 0, 0], [1.35, 0.35, 0], [1.7 / 3] * 3], rtol=1e-12, atol=1e-12)


# Other regularizers.


@pytest.mark.parametrize("regularizer", [L0(strength=0.4), L0Ball(nonzeros=3)], ids=lambda one: one.name)
def test_cardinality_prox_is_the_global_minimum(stacked, regularizer):
    """The cost is compared with that of every support of six weights."""
    assert not regularizer.convex
    z, t = np.random.default_rng(10).standard_normal((10, 6)) * 2, 1.3
    z[0, 1] = z[0, 2] = -z[0, 0]  # a tie
    w = stacked.prox(regularizer, z, t)
    for row, result, value in zip(z, w, stacked.psi(regularizer, w), strict=True):
        costs = []
        for kept in itertools.product([0, 1], repeat=6):
            is_feasible = regularizer.name == "l0" or sum(kept) <= 3
            penalty = t * 0.4 * sum(kept) if regularizer.name == "l0" else 0
            costs.append(penalty + (row[np.array(kept) == 0] ** 2).sum() / 2 if is_feasible else np.inf)
        assert t * value + ((row - result) ** 2).sum() / 2 == pytest.approx(min(costs))


@given(z=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60), width=st.floats(1e-3, 100))
@settings(max_examples=150)
def test_taut_string_is_optimal(stacked, z, width):
    """Dual certificate: the cumulative sums of z - w stay in the tube and touch its boundary where w jumps."""
    z = np.array(z)
    w = stacked.prox(TotalVariation(strength=1.0), z[None], width)[0]
    u, tolerance = np.cumsum(z - w), 1e-9 * (1 + np.abs(z).sum())
    assert abs(u[-1]) <= tolerance
    assert np.abs(u).max() <= width + tolerance
    jumps = np.diff(w)
    is_jump = np.abs(jumps) > tolerance
    np.testing.assert_allclose(u[:-1][is_jump], -width * np.sign(jumps[is_jump]), atol=tolerance)


@given(z=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60))
@settings(max_examples=100)
def test_monotone_agrees_with_scikit_learn(stacked, z):
    w = stacked.prox(Monotone(), np.array(z)[None], 1.0)[0]
    np.testing.assert_allclose(w, isotonic_regression(np.array(z)), atol=1e-9)


# Blockwise: each block has its own piece.

THREE = {
    "first": {"name": "l1", "strength": 0.5},
    "second": {"name": "simplex", "total": 1.0},
    "third": {"name": "elastic_net", "strength": 0.1, "l2_strength": 2.0},
}
LAYOUT = Layout(
    (Block("third", (3,)), Block("bias", (2,), regularized=False), Block("first", (4,)), Block("second", (5,)))
)


def test_blockwise_applies_each_piece_to_its_block():
    """Three blocks with three pieces, one of them a constraint."""
    regularizer = Blockwise(blocks=THREE)
    regularizer.check_layout(LAYOUT)
    geometry = Geometry(
        np.repeat(regularizer.numbers, 2),
        Euclidean().numbers,
        regularizer.table(LAYOUT),
        regularizer.coordinate_numbers(LAYOUT),
    )
    z, t = np.random.default_rng(0).standard_normal((2, 14)), np.array([0.4, 1.1])
    w, total = np.empty_like(z), np.zeros(2)
    specialize(to_primal, on_block={"primal": Euclidean().primal(regularizer)})(z, t, geometry, w)
    specialize(psi_value, on_block={"value": regularizer.value})(w, geometry, total)

    def soft(v, threshold):
        return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)

    for j in range(2):
        np.testing.assert_allclose(w[j, :3], soft(z[j, :3], 0.1 * t[j]) / (1 + 2 * t[j]))
        np.testing.assert_array_equal(w[j, 3:5], z[j, 3:5])
        np.testing.assert_allclose(w[j, 5:9], soft(z[j, 5:9], 0.5 * t[j]))
        assert w[j, 9:].sum() == pytest.approx(1)
        assert w[j, 9:].min() >= 0
    expected = 0.5 * np.abs(w[:, 5:9]).sum(1) + 0.1 * np.abs(w[:, :3]).sum(1) + (w[:, :3] ** 2).sum(1)
    np.testing.assert_allclose(total, expected)
    assert regularizer.kind == "blockwise(first=l1, second=simplex, third=elastic_net)"
    assert not regularizer.constraint  # not all pieces are constraints
    assert regularizer.subgradient is None  # a constraint has no subgradient


def test_blockwise_penalties_have_a_subgradient_and_blockwise_constraints_are_a_constraint():
    regularizer = Blockwise(blocks={**THREE, "second": {"name": "l2_squared", "strength": 2.0}})
    geometry = Geometry(
        regularizer.numbers, Euclidean().numbers, regularizer.table(LAYOUT), regularizer.coordinate_numbers(LAYOUT)
    )
    w, g = np.arange(1.0, 15)[None], np.zeros((1, 14))
    specialize(psi_subgradient, on_block={"subgradient": regularizer.subgradient})(w, geometry, g)
    np.testing.assert_allclose(g[0], [*(0.1 + 2 * w[0, :3]), 0, 0, *[0.5] * 4, *(2 * w[0, 9:])])
    both = Blockwise(blocks={"first": {"name": "simplex", "total": 1.0}, "second": {"name": "l0_ball", "nonzeros": 2}})
    assert both.constraint
    assert not both.convex


def test_parameters_of_pieces_are_read_by_name():
    psi = Blockwise(blocks=THREE).numbers
    assert psi.shape == (1,)
    assert psi[0].first.strength == 0.5
    assert psi[0].others.first.total == 1.0
    assert psi[0].others.others.l2_strength == 2.0


def test_blockwise_must_name_all_regularized_blocks_and_no_others():
    layout = Layout((Block("weights", (4,)), Block("bias", (1,), regularized=False)))
    with pytest.raises(UserError, match=r"regularizer\.blocks: got 'bias', must be all of weights"):
        Blockwise(blocks={"bias": {"name": "none"}}).check_layout(layout)


LAYERS = Layout((Block("conv1.weight", (4, 1, 3)), Block("conv1.bias", (4,), False), Block("fc.weight", (2, 4))))


def test_a_block_has_the_first_pattern_that_matches():
    l1, l2 = {"name": "l1", "strength": 1.0}, {"name": "l2_squared", "strength": 2.0}
    psi = Blockwise(blocks={"conv*": l1, "*": l2})
    psi.check_layout(LAYERS)
    assert psi.table(LAYERS)[:, 5].tolist() == [0, 0, 1]
    for blocks in ({"conv*": l1}, {"*": l1, "fc.weight": l2}, {"*.weight": l1, "absent*": l2}):
        with pytest.raises(UserError, match=r"regularizer\.blocks: got .* all of conv1\.weight, fc\.weight"):
            Blockwise(blocks=blocks).check_layout(LAYERS)
    with pytest.raises(UserError, match=r"regularizer\.blocks\.a: got 'l1', must be a mapping"):
        Blockwise(blocks={"a": "l1"})


def test_groups_are_the_rows_of_blocks_of_several_axes():
    psi = GroupLasso(strength=0.5, group_size=0)
    psi.check_layout(LAYERS)
    groups = psi.coordinate_numbers(LAYERS)
    assert groups.tolist() == [*np.repeat(range(4), 3), *range(4), *np.repeat(range(2), 4)]
    z, out = np.random.default_rng(0).standard_normal(12), np.empty(12)
    z[3:6] *= 0.1
    block = BlockInfo(0, 4, 3, groups[:12])
    psi.prox.uncompiled(z, 0.8, psi.numbers[0], block, out)
    norms = np.linalg.norm(z.reshape(4, 3), axis=1, keepdims=True)
    expected = z.reshape(4, 3) * np.maximum(1 - 0.4 * np.sqrt(3) / norms, 0)
    np.testing.assert_allclose(out.reshape(4, 3), expected, rtol=1e-12)
    assert not out[3:6].any()
    assert psi.value.uncompiled(z, psi.numbers[0], block) == pytest.approx(0.5 * np.sqrt(3) * norms.sum())


def test_the_nuclear_norm_of_a_block_of_several_axes_is_that_of_its_matrix():
    psi = Nuclear(strength=0.5)
    psi.check((4, 2, 3, 3))
    with pytest.raises(UserError, match="a regularizer of vectors"):
        psi.check((4,))
    w = np.random.default_rng(0).standard_normal(72)
    value = psi.value.uncompiled(w, psi.numbers[0], BlockInfo(0, 4, 18, np.ones(72)))
    assert value == pytest.approx(psi.strength * np.linalg.svd(w.reshape(4, 18), compute_uv=False).sum())


# Parameters.


@pytest.mark.parametrize("name", all_regularizers())
def test_parameters_are_validated(name):
    kind = all_regularizers()[name]
    keys = [one.name for one in fields(kind) if one.type in ("float", "int")]
    usual = {key: {"group_size": 2, "nonzeros": 2, "lower": -1.0}.get(key, 1.0) for key in keys}
    for key in keys:
        reported = "upper" if key == "lower" else key  # the bounds of a box are checked together
        count = key in ("group_size", "nonzeros")  # integers
        smallest = {"group_size": 0, "nonzeros": 1}.get(key, 0)  # 0: the rows of a block are the groups
        for bad in (-np.inf if key == "lower" else -2.0, np.nan, smallest - 1 if count else np.inf):
            with pytest.raises(UserError, match=rf"^regularizer\.{reported}: got "):
                kind(**{**usual, key: bad})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Blockwise(blocks={"weights": {"name": "ridge"}}), "regularizer.blocks.weights.name: got 'ridge'"),
        (lambda: Blockwise(blocks={"weights": {"name": "l1", "lambda": 1.0}}), "regularizer.blocks.weights"),
        (lambda: Blockwise(blocks={}), "regularizer.blocks"),
        (lambda: GroupLasso(strength=1.0, group_size=-1), "regularizer.group_size: got -1"),
        (lambda: GroupLasso(strength=1.0, group_size=5).check((12,)), "a divisor of 12"),
        (lambda: Box(lower=1.0, upper=0.0), "regularizer.upper"),
        (lambda: Simplex(total=0.0), "regularizer.total"),
        (lambda: L1Ball(radius=0.0), "regularizer.radius: got 0.0, must be a number > 0"),
        (lambda: L2Ball(radius=0.0), "regularizer.radius: got 0.0, must be a number > 0"),
        (lambda: L0Ball(nonzeros=0), "regularizer.nonzeros"),
        (lambda: NuclearBall(radius=1.0).check((12,)), "nuclear_ball"),
        (lambda: Slope(strength=1.0, ramp=-1.0), "regularizer.ramp"),
    ],
)
def test_invalid_parameters_are_rejected_by_name(make, message):
    with pytest.raises(UserError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_strength_may_be_zero():
    assert L1(strength=0.0).numbers[0].strength == 0
