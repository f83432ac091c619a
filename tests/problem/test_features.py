"""Numbers for features by their names: penalty factors and groups."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.layout import Block, Layout
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.regularizers.features import by_feature
from fco_cli.problem.regularizers.groups import GroupLasso
from fco_cli.problem.regularizers.penalties import L1

NAMES = ("age", "color=red", "color=blue")


def test_a_feature_has_its_own_number_and_a_column_that_became_several_shares_one():
    layout = Linear(3, outputs=2).layout
    numbers = by_feature("key", {"age": 2, "color": 0}, layout, NAMES, other=1.0)
    assert numbers.tolist() == [2, 0, 0] * 2 + [1, 1]  # of both classes alike; not of the bias
    assert by_feature("key", {"color=red": 3}, layout, NAMES, other=1.0)[:3].tolist() == [1, 3, 1]
    assert by_feature("key", {"x2": 5}, Linear(3).layout, None, other=1.0).tolist() == [1, 1, 5, 1]
    assert by_feature("key", {"x2": 5}, Linear(3, 2).layout, None, other=1.0).tolist() == [1, 1, 5, 1, 1, 5, 1, 1]


def test_a_feature_without_a_factor_of_its_own_is_penalized_and_one_with_0_never(make_problem, full_cohort):
    """At the optimum the gradient of what is not penalized vanishes, that of the others is within the strength."""
    from fco_cli.algorithms import all_algorithms
    from fco_cli.algorithms.rounds import Varying

    problem = make_problem(L1(strength=0.6, factors={"x1": 0}))
    optimum = all_algorithms()["optimum"]()
    bound = optimum.bind(problem, Varying.in_rates(optimum, problem.regularizer, np.ones(1), np.ones(1)))
    w = bound.round(bound.initial_state(problem.initial_models(problem.regularizer.numbers))).state["w"]
    gradient = problem.risk(w).gradient[0, :6]
    assert abs(gradient[1]) < 1e-8
    assert abs(gradient).max() <= 0.6 + 1e-8
    assert 0 < np.count_nonzero(w[0, :6]) < 6  # the penalty acts on the others


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: L1(strength=1, factors={"agee": 0}).each(Linear(3).layout, NAMES), "regularizer.factors.agee: .*age"),
        (lambda: L1(strength=1, factors={"age": -1}), "regularizer.factors.age: got -1, must be a number >= 0"),
        (
            lambda: L1(strength=1, factors={"x0": 0}).each(Layout((Block("weights1", (3,)),)), None),
            "regularizer.factors: only a linear model",
        ),
        (
            lambda: GroupLasso(strength=1, group_size=1, groups={"age": "a"}).each(Linear(3).layout, NAMES),
            "regularizer.groups: feature 'color=red' is in no group",
        ),
        (
            lambda: GroupLasso(strength=1, group_size=1, groups={"age": "a", "colour": "b"}).each(
                Linear(3).layout, NAMES
            ),
            "regularizer.groups.colour: no such feature; there are age, color=red, color=blue",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_groups_may_come_from_a_table(tmp_path):
    path = tmp_path / "groups.csv"
    path.write_text("feature,group\nage,body\ncolor,hue\n")
    groups = GroupLasso(strength=1, group_size=1, groups=str(path))
    assert groups.groups == {"age": "body", "color": "hue"}  # the content, not the path, is the run's identity
    assert groups.each(Linear(3).layout, NAMES)[:3].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"age,body\n", "must begin with the line feature,group"),
        (b"feature,group\nage\n", "line 2 must have two columns"),
        (b"feature,group\nage,a\nage,b\n", "line 3 repeats 'age'"),
        (b"\xff\xfe", "not a CSV file in UTF-8"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, content, words):
    path = tmp_path / "groups.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^regularizer.groups: .*{words}"):
        GroupLasso(strength=1, group_size=1, groups=str(path))
    with pytest.raises(UserError, match="is not a CSV file"):
        GroupLasso(strength=1, group_size=1, groups=str(tmp_path / "nosuch.csv"))
