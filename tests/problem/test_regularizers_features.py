"""Numbers given by feature name: penalty factors and groups."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.layout import Block, Layout
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.regularizers.base import expand_by_feature
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.problem.regularizers.structured import GroupLasso

NAMES = ("age", "color=red", "color=blue")


def test_numbers_are_given_by_feature_or_by_column():
    layout = Linear(3, outputs=2).layout
    numbers = expand_by_feature("key", {"age": 2, "color": 0}, layout, NAMES, other=1.0)
    assert numbers.tolist() == [2, 0, 0] * 2 + [1, 1]  # equal for both classes; not for the bias
    assert expand_by_feature("key", {"color=red": 3}, layout, NAMES, other=1.0)[:3].tolist() == [1, 3, 1]
    assert expand_by_feature("key", {"x2": 5}, Linear(3).layout, None, other=1.0).tolist() == [1, 1, 5, 1]
    assert expand_by_feature("key", {"x2": 5}, Linear(3, 2).layout, None, other=1.0).tolist() == [
        1,
        1,
        5,
        1,
        1,
        5,
        1,
        1,
    ]


def test_a_feature_with_factor_0_is_not_penalized(make_problem, full_cohort):
    """At the optimum, the gradient is 0 along unpenalized features and within the strength along the others."""
    from fco_cli.algorithms import all_algorithms
    from fco_cli.algorithms.rounds import Varying

    problem = make_problem(L1(strength=0.6, factors={"x1": 0}))
    optimum = all_algorithms()["optimum"]()
    bound = optimum.bind(problem, Varying.from_rates(optimum, problem.regularizer, np.ones(1), np.ones(1)))
    w = bound.round(bound.initial_state(problem.initial_models(problem.regularizer.numbers))).state["w"]
    gradient = problem.risk(w).gradient[0, :6]
    assert abs(gradient[1]) < 1e-8
    assert abs(gradient).max() <= 0.6 + 1e-8
    assert 0 < np.count_nonzero(w[0, :6]) < 6  # the penalty acts on the others


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: L1(strength=1, factors={"agee": 0}).coordinate_numbers(Linear(3).layout, NAMES),
            "regularizer.factors.agee: .*age",
        ),
        (lambda: L1(strength=1, factors={"age": -1}), "regularizer.factors.age: got -1, must be a number >= 0"),
        (
            lambda: L1(strength=1, factors={"x0": 0}).coordinate_numbers(Layout((Block("weights1", (3,)),)), None),
            "regularizer.factors: needs a linear model",
        ),
        (
            lambda: GroupLasso(strength=1, group_size=1, groups={"age": "a"}).coordinate_numbers(
                Linear(3).layout, NAMES
            ),
            "regularizer.groups: feature 'color=red' has no group",
        ),
        (
            lambda: GroupLasso(strength=1, group_size=1, groups={"age": "a", "colour": "b"}).coordinate_numbers(
                Linear(3).layout, NAMES
            ),
            "regularizer.groups.colour: feature not found; features are age, color=red, color=blue",
        ),
    ],
)
def test_invalid_names_and_numbers_are_rejected(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_groups_are_read_from_a_csv_file(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("feature,group\nage,body\ncolor,hue\n")
    groups = GroupLasso(strength=1, group_size=1, groups=str(path))
    assert groups.groups == {"age": "body", "color": "hue"}  # the run is identified by the content, not by the path
    assert groups.coordinate_numbers(Linear(3).layout, NAMES)[:3].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"age,body\n", "must begin with the line feature,group"),
        (b"feature,group\nage\n", "line 2 must have two columns"),
        (b"feature,group\nage,a\nage,b\n", "line 3 repeats 'age'"),
        (b"\xff\xfe", "not a CSV file in UTF-8"),
    ],
)
def test_invalid_csv_files_are_rejected(tmp_path, content, message):
    path = tmp_path / "groups.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^regularizer.groups: .*{message}"):
        GroupLasso(strength=1, group_size=1, groups=str(path))
    with pytest.raises(UserError, match=r"nosuch\.csv cannot be read: .*No such file"):
        GroupLasso(strength=1, group_size=1, groups=str(tmp_path / "nosuch.csv"))
