"""Any column against any other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fco_cli.errors import UserError
from fco_cli.reporting.lines import MOST_LINES, check_columns, draw_lines


@pytest.fixture
def axis():
    return Figure().subplots()


def test_a_line_is_the_median_in_a_band_of_the_range(axis):
    table = pd.DataFrame({"x": [1, 1, 1, 2], "y": [3.0, 5.0, 10.0, 4.0], "by": "a"})
    draw_lines(axis, table, "x", "y", "by")
    (line,) = axis.get_lines()
    assert line.get_xydata().tolist() == [[1, 5], [2, 4]]
    band = axis.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (3, 10)
    assert axis.get_xscale() == axis.get_yscale() == "linear"


def test_values_wide_apart_have_a_logarithmic_axis_that_says_so(axis):
    table = pd.DataFrame({"rate": [0.001, 0.1], "objective": [2.0, 3.0], "seed": 0})
    draw_lines(axis, table, "rate", "objective", "seed")
    assert (axis.get_xscale(), axis.get_xlabel()) == ("log", "rate, log scale")
    assert axis.get_yscale() == "log"  # as this metric always has


def test_groups_of_any_kind_have_an_order(axis):
    table = pd.DataFrame({"x": 1.0, "y": [1.0, 2, 3, 4, np.nan, 1e300], "by": ["word", 10, 2, None, 5, "$huge$"]})
    draw_lines(axis, table, "x", "y", "by")
    labels = [line.get_label() for line in axis.get_lines()]
    assert labels[:2] == ["2", "10"]  # and 5 has nothing to show
    assert sorted(labels[2:]) == [r"\$huge\$", "none", "word"]


def test_what_cannot_be_drawn_is_refused():
    table = pd.DataFrame({"x": np.arange(MOST_LINES + 1.0), "word": "a"})
    with pytest.raises(UserError, match="x: got 'y', must be one of x"):
        check_columns(table, "y", "x", "word")
    with pytest.raises(UserError, match="y: got 'word', must be one of x"):
        check_columns(table, "x", "word", "word")
    with pytest.raises(UserError, match="at most 30 values; it has 31"):
        check_columns(table, "x", "x", "x")
