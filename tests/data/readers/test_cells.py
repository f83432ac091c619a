"""Cells of tables as numbers and as categories."""

from __future__ import annotations

import math

import pytest

from fco_cli.data.readers.cells import category_name


@pytest.mark.parametrize(
    ("number", "name"),
    [(1.0, "1"), (-3.0, "-3"), (0.5, "0.5"), (1e300, "1e+300"), (math.inf, "inf"), (-math.inf, "-inf")],
)
def test_category_names_of_numbers(number, name):
    assert category_name(number) == name
