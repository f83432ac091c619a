"""Exact sums over clients: independent of their order and of masks, and accurate for any unit and offset."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.data.exact_sums import (
    add_words,
    column_sums,
    exact_sum,
    from_integers,
    from_words,
    subtract_words,
    to_integers,
    to_words,
)
from fco_cli.data.format import Features
from fco_cli.data.preparation import Recipe, prepared
from fco_cli.data.statistics import Moments
from tests.data.test_preparation import from_arrays, table

NUMBERS = st.floats(-1e150, 1e150).filter(lambda value: value == 0 or abs(value) > 1e-150)


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=6))
def test_a_sum_is_exact_and_rounded_once(clients):
    arrays = [np.array(one) for one in clients]
    expected = [float(sum(map(Fraction, column))) for column in np.array(clients).T.tolist()]
    assert exact_sum(arrays).tolist() == expected
    assert exact_sum(arrays[::-1]).tolist() == expected


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5), st.integers(0, 2**32))
def test_words_are_added_with_carries(pairs, seed):
    """Masks cancel, and the sum of words is the word of the sum."""
    (one, fits), (other, _) = (to_integers(np.array(column)) for column in zip(*pairs, strict=True))
    shape = to_words(one).shape
    mask = np.frombuffer(np.random.default_rng(seed).bytes(8 * shape[0] * shape[1]), np.uint64).reshape(shape)
    masked = add_words(to_words(one), mask)
    total = add_words(masked, subtract_words(to_words(other), mask))
    assert from_words(total) == [a + b for a, b in zip(one, other, strict=True)]
    assert from_integers(from_words(subtract_words(masked, mask)), fits).tolist() == [a for a, _ in pairs]


def test_a_number_out_of_range_leaves_the_others():
    total = exact_sum([np.array([1.0, 1e170, np.nan, np.inf]), np.array([2.0, 1.0, 1.0, 1.0])])
    assert total[0] == 3
    assert np.isnan(total[1:]).all()


@pytest.mark.parametrize("fill", ["mean", "median"])
def test_a_preparation_from_sums_agrees_with_that_from_summaries(fill):
    data, recipe = table(), Recipe(fill=fill, flag_missing=True)
    one, other = prepared(data, recipe), prepared(data, recipe, exact=True)
    assert one.features == other.features
    assert one.categories == other.categories
    for name in ("fill", "mean", "scale"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-7, err_msg=name)
    renamed = data.take(np.arange(len(data.y))[::-1])
    np.testing.assert_allclose(prepared(renamed, recipe, exact=True).mean, other.mean, rtol=1e-12)


@pytest.mark.parametrize(("unit", "offset"), [(1.0, 0.0), (1e-9, 0.0), (1e9, 0.0), (1.0, 1e8), (1e-3, -1e6)])
def test_deviations_are_accurate_for_any_unit_and_offset(unit, offset):
    data = table()
    data.x[:, 0] = offset + unit * np.random.default_rng(0).normal(size=len(data.x))
    made = prepared(data, Recipe(), exact=True)
    np.testing.assert_allclose(made.mean[0], data.x[:, 0].mean(), rtol=1e-12, atol=1e-12 * unit)
    np.testing.assert_allclose(made.scale[0], data.x[:, 0].std(), rtol=1e-7)  # 1e8 has 8 digits less


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12), st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12))
def test_the_median_is_in_the_interval_of_the_search(one, other):
    """At most one standard deviation from the mean; the search ends within 2^-31 of that and rounding."""
    values = np.array([*one, *other])
    arrays = {"x": values[:, None], "y": np.zeros(len(values)), "client": np.repeat(["a", "b"], [len(one), len(other)])}
    data = from_arrays("here", arrays)
    made = prepared(data, Recipe(fill="median", standardize=False), exact=True)
    lower = np.sort(values)[(len(values) + 1) // 2 - 1]
    assert abs(made.fill[0] - lower) <= values.std() / 2**30 + 1e-8 * np.abs(values).max() + 1e-80


def test_a_center_of_the_analyst_discloses_moments_only():
    """With large centers, rounding of single values would disclose more than their moments."""
    x = np.array([[1.0], [2.0], [6.0]])
    for center in (0.0, 3.0, 2.0**53, 2.0**60 + 2**9):
        sums = column_sums(Features("t", x, ["v"], {}), np.array([center]), {})
        moments = Moments.of(x)
        shift = moments.mean[0] - center
        assert sums.tolist() == [3, 3 * shift, moments.deviations[0] + 3 * shift**2]
