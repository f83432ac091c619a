"""Dimensions from overrides, their values as text and the overrides of a point."""

from __future__ import annotations

import math

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fco_cli.errors import UserError
from fco_cli.search.space import Dimension, Space, dimension_of, is_searched


def parsed(text):
    return OverridesParser.create().parse_override(text)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("a.b=interval(1,10)", Dimension("a.b", low=1.0, high=10.0)),
        ("a.b=tag(log,interval(1e-4,1))", Dimension("a.b", low=1e-4, high=1.0, is_log=True)),
        ("a.b=int(interval(1,10))", Dimension("a.b", low=1, high=10, is_whole=True)),
        ("a.b=10,1,0.1,1", Dimension("a.b", ("0.1", "1", "10"), is_ordered=True)),
        ("a.b=range(2,9,3)", Dimension("a.b", ("2", "5", "8"), is_ordered=True)),
        ("a.b=choice(uniform,examples)", Dimension("a.b", ("uniform", "examples"))),
        ("a.b=auto,0.3/L", Dimension("a.b", ("auto", "0.3/L"))),
    ],
)
def test_a_swept_key_is_a_dimension(text, dimension):
    override = parsed(text)
    assert is_searched(override)
    found = dimension_of(override)
    assert repr(found) == repr(dimension)
    low, high = found.at(0.0), found.at(1 - 1e-12)
    assert found.text(low) != found.text(high)
    if found.values:
        assert (found.text(low), found.text(high)) == (found.values[0], found.values[-1])
    else:
        assert (float(found.text(low)), float(found.text(high))) == pytest.approx((found.low, found.high))


@pytest.mark.parametrize("text", ["algo=fedmid,fedavg", "seed=1,2", "hparams.client_lr=1", "task=glob(lasso*)"])
def test_options_of_groups_seeds_and_single_values_are_not_searched(text):
    assert not is_searched(parsed(text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a.b=interval(1,1)", "a.b: got 'interval(1,1)', must be an interval with two finite ends"),
        ("a.b=interval(0,inf)", "must be an interval with two finite ends"),
        ("a.b=tag(log,interval(0,1))", "must be an interval above 0 with the tag log"),
        ("a.b=tag(lg,interval(1,2))", "a.b: got the tag lg, must be log or none"),
        ("a.b=tag(log,choice(1,2))", "the tag log is for intervals"),
        ("a.b=glob(x*)", "a.b: got 'glob(x*)', must be a list of values"),
        ("a.b=range(1,1)", "a.b: got 'range(1,1)', must be a list of values"),
    ],
)
def test_a_wrong_interval_is_refused_in_one_line(text, complaint):
    with pytest.raises(UserError) as problem:
        dimension_of(parsed(text))
    assert complaint in str(problem.value)
    assert "\n" not in str(problem.value)


def test_numbers_have_six_digits_and_stay_in_their_interval():
    one = Dimension("a", low=0.12345678, high=0.23456789)
    assert one.text(0.1999999999) == "0.2"
    for parameter in (one.low, one.high, 0.123457, 0.234568):
        assert one.low <= float(one.text(parameter)) <= one.high


def test_the_points_of_a_finite_space_are_listed_once():
    space = Space((Dimension("a", ("x", "y")), Dimension("b", low=2, high=4, is_whole=True)), ("c=1",))
    points = [space.point(parameters) for parameters in space.points()]
    assert space.size == len(set(points)) == 6
    assert space.overrides(points[-1]) == ["c=1", "a=y", "b=4"]
    assert Space((*space.dimensions, Dimension("d", low=0, high=1)), ()).size == math.inf
