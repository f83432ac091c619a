"""Preparation by declared ranges: independent of the rows, or by moments with noise that hides single rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fco_cli.data.format import Features
from fco_cli.data.ranges import check_ranges, clipped_sums, declared_preparation, largest_norm, with_moments
from fco_cli.errors import UserError

RANGES = {"age": [20, 80], "ward": ["blue", "green", "red"], "sex": ["f", "m"], "default": [0, 10]}
COLUMNS = ["age", "dose", "ward", "sex"]


def table(x):
    return Features("here", np.array(x, float), COLUMNS, {2: ["blue", "green", "red", "pink"], 3: ["f", "m"]})


def test_features_are_scaled_by_the_centers_and_half_widths():
    preparation = declared_preparation(COLUMNS, RANGES, standardize=True)
    assert preparation.features == ["age", "dose", "ward=blue", "ward=green", "ward=red", "sex=m"]
    prepared = preparation.apply(table([[80, 0, 1, 0], [np.nan, 5, 3, np.nan], [140, 15, np.nan, 1]]))
    third = (1 / 3 - 0.5) / 0.5
    expected = [[1, -1, -1, 1, -1, -1], [0, 0, third, third, third, 0], [3, 2, third, third, third, 1]]
    np.testing.assert_allclose(prepared, expected, atol=1e-12)


def test_without_standardization_missing_values_are_the_centers():
    preparation = declared_preparation(COLUMNS, RANGES, standardize=False)
    np.testing.assert_allclose(preparation.apply(table([[np.nan, np.nan, 0, 1]])), [[50, 5, 1, 0, 0, 1]])


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([1], r"task\.ranges: got \[1\], must be null or a mapping"),
        ({}, r"task\.ranges: got {}, must be"),
        ({"age": [5, 5]}, r"task\.ranges\.age: got \[5, 5\], must be \[low, high\] with low < high"),
        ({"age": [0, float("nan")]}, r"task\.ranges\.age"),
        ({"age": [0, 1, 2]}, r"task\.ranges\.age"),
        ({"sex": ["f", "f"]}, r"task\.ranges\.sex"),
        ({"sex": ["f", 1]}, r"task\.ranges\.sex"),
        ({"sex": []}, r"task\.ranges\.sex"),
    ],
)
def test_invalid_ranges(ranges, message):
    with pytest.raises(UserError, match=f"^{message}"):
        check_ranges(ranges)


def test_columns_without_a_range_and_ranges_without_a_column():
    with pytest.raises(UserError, match=r"^task\.ranges: no range of dose, ward; add them, or the key default"):
        declared_preparation(COLUMNS, {"age": [0, 1], "sex": ["f", "m"]}, True)
    with pytest.raises(UserError, match=r"^task\.ranges: no such column: aeg; columns are age, dose"):
        declared_preparation(COLUMNS, {"aeg": [0, 1], "default": [0, 1]}, True)


def test_no_value_of_a_row_changes_the_sums_by_more_than_twice_the_norm():
    preparation = declared_preparation(COLUMNS[:2], {"default": [-3, 5]}, True)

    def sums(row):
        return clipped_sums(Features("here", np.array([row, [1.0, 2.0]]), COLUMNS[:2], {}), preparation)

    values = [-1e300, -3, 1, 5, 1e300, np.nan, np.inf]
    changes = [
        np.linalg.norm(sums(one) - sums(other))
        for one, other in itertools.product(itertools.product(values, repeat=2), repeat=2)
    ]
    assert max(changes) <= 2 * largest_norm(2) * (1 + 1e-12)
    assert max(changes) > 0.85 * 2 * largest_norm(2)  # opposite corners change the first moments only


def test_moments_without_noise_are_those_of_the_rows():
    random = np.random.default_rng(0)
    x = random.uniform(0, 8, (300, 2)) ** [1, 0.5]
    preparation = declared_preparation(COLUMNS[:2], {"default": [0, 10]}, True)
    parts = [Features("here", part, COLUMNS[:2], {}) for part in np.split(x, [50, 120])]
    made = with_moments(preparation, [clipped_sums(part, preparation) for part in parts], 300, 1e-9)
    np.testing.assert_allclose(made.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(made.scale, x.std(axis=0), rtol=1e-12)


def test_variances_are_at_least_the_noise_and_at_most_that_of_the_range():
    preparation = declared_preparation(COLUMNS[:2], {"default": [0, 10]}, True)
    sums = [np.array([[1.0, 500.0], [-50.0, 1e4]])] * 4
    made = with_moments(preparation, sums, 100, 2.0)
    assert made.scale == pytest.approx([5 * np.sqrt(2.0 * 2 / 100), 5.0])
    assert made.mean == pytest.approx([5 + 5 * 0.04, 10.0])
