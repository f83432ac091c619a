"""Tests of line plots of any column against any other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fco_cli.errors import UserError
from fco_cli.reporting.figures.curves import MAX_LINES, check_columns, draw_lines, line_columns


@pytest.fixture
def axis():
    return Figure().subplots()


def test_line_is_the_median_with_a_band_of_the_range(axis):
    table = pd.DataFrame({"x": [1, 1, 1, 2], "y": [3.0, 5.0, 10.0, 4.0], "by": "a"})
    draw_lines(axis, table, "x", "y", "by")
    (line,) = axis.get_lines()
    assert line.get_xydata().tolist() == [[1, 5], [2, 4]]
    band = axis.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (3, 10)
    assert axis.get_xscale() == axis.get_yscale() == "linear"


def test_wide_ranges_have_a_labeled_logarithmic_axis(axis):
    table = pd.DataFrame({"rate": [0.001, 0.1], "objective": [2.0, 3.0], "seed": 0})
    draw_lines(axis, table, "rate", "objective", "seed")
    assert (axis.get_xscale(), axis.get_xlabel()) == ("log", "rate, log scale")
    assert axis.get_yscale() == "log"  # this metric is always logarithmic


def test_groups_are_sorted(axis):
    table = pd.DataFrame({"x": 1.0, "y": [1.0, 2, 3, 4, np.nan, 1e300], "by": ["word", 10, 2, None, 5, "$huge$"]})
    draw_lines(axis, table, "x", "y", "by")
    labels = [line.get_label() for line in axis.get_lines()]
    assert labels[:2] == ["2", "10"]  # 5 has no values
    assert sorted(labels[2:]) == [r"\$huge\$", "none", "word"]


def test_band_aggregates_repetitions_but_not_settings(axis):
    rows = [
        {"round": r, "y": 10 * rate + seed, "algo": "zhj", "seed": seed, "hparams.client_lr": rate, "hparams.x": 3 * r}
        for r in (1, 2) for rate in (0.1, 0.5) for seed in (0, 1, 2)
    ]  # fmt: skip
    table = pd.DataFrame([row | {"task.a": row["hparams.client_lr"] ** 2} for row in rows])
    assert line_columns(table, "round", "algo") == ["algo", "hparams.client_lr"]  # the others are implied by it or by x
    draw_lines(axis, table, "round", "y", "algo")
    assert [line.get_label() for line in axis.get_lines()] == ["ZHJ, client_lr 0.1", "ZHJ, client_lr 0.5"]
    assert [line.get_ydata().tolist() for line in axis.get_lines()] == [[2, 2], [6, 6]]
    bands = [band.get_paths()[0].vertices[:, 1] for band in axis.collections]
    assert [(band.min(), band.max()) for band in bands] == [(1, 3), (5, 7)]
    assert len({line.get_color() for line in axis.get_lines()}) == 2


def test_too_many_lines_raise_user_error():
    table = pd.DataFrame({"x": 1.0, "y": 2.0, "algo": "zhj", "hparams.client_lr": np.arange(MAX_LINES + 1.0)})
    with pytest.raises(
        UserError, match="results: got '31 rows', must be a table of at most 30 lines; it has 31, which"
    ):
        check_columns(table, "x", "y", "algo")


def test_invalid_columns_raise_user_error():
    table = pd.DataFrame({"x": np.arange(MAX_LINES + 1.0), "word": "a"})
    with pytest.raises(UserError, match="x: got 'y', must be one of x"):
        check_columns(table, "y", "x", "word")
    with pytest.raises(UserError, match="y: column word has values that are not numbers, such as a"):
        check_columns(table, "x", "word", "word")
    with pytest.raises(UserError, match="at most 30 values; it has 31"):
        check_columns(table, "x", "x", "x")
