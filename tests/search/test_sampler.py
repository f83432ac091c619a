"""Batches of distinct points that depend on the seed and on the reported values alone."""

from __future__ import annotations

import math

import pytest

from fco_cli.config.search import Objective, Search
from fco_cli.errors import UserError
from fco_cli.search.sampler import Sampler
from fco_cli.search.space import Dimension, Space

pytest.importorskip("optuna")

RATES = Dimension("rate", low=1e-4, high=1, is_log=True)
GRID = Dimension("grid", tuple(map(str, range(1, 8))), is_ordered=True)
KIND = Dimension("kind", ("a", "b"))
LEAST = [Objective("loss", "minimize")]


def asked(space, cost, batches=4, objectives=LEAST, **settings):
    """Return the points of a search with a known cost, batch by batch; a cost of None is a run that diverged."""
    search = Search(**{"batch": 4, **settings})
    sampler, points = Sampler(space, search, objectives), []
    for _ in range(batches):
        batch = sampler.ask(search.batch)
        for point in batch:
            value = cost(point)
            sampler.tell(point, None if value is None else [value] if isinstance(value, float) else value)
        points.append(batch)
    return points


def distance(point):
    rate = float(point[0])
    return None if rate > 0.3 else abs(math.log10(rate) + 2)


def test_the_same_seed_gives_the_same_points_and_another_seed_gives_others():
    space = Space((RATES, KIND), ())
    assert asked(space, distance) == asked(space, distance) != asked(space, distance, seed=1)


def test_points_are_distinct_and_the_first_batch_has_one_in_every_part():
    (first, *others) = asked(Space((RATES,), ()), distance)
    points = [point for batch in (first, *others) for point in batch]
    assert len(set(points)) == 16
    assert sorted(int(math.log10(float(rate)) + 4) for (rate,) in first) == [0, 1, 2, 3]


def test_later_batches_follow_the_reported_values():
    costs = [[distance(point) for point in batch] for batch in asked(Space((RATES,), ()), distance, batches=8)]
    last = [cost for batch in costs[4:] for cost in batch if cost is not None]
    assert len(last) > 12
    assert sorted(last)[len(last) // 2] < 0.6  # 1.1 for random points


def test_a_finite_space_ends_after_all_of_its_points():
    points = asked(Space((GRID, KIND), ()), lambda point: float(point[0]), batches=6)
    assert [len(batch) for batch in points] == [4, 4, 4, 2, 0, 0]
    assert len({point for batch in points for point in batch}) == 14


def test_larger_learning_rates_than_a_diverged_one_are_left_out():
    rate = Dimension("hparams.client_lr", ("0.1", "0.2", "0.4", "0.8"), is_ordered=True)
    space = Space((rate, KIND), ())

    def cost(point):
        return None if float(point[0]) > 0.1 else float(point[0])

    points = [point for batch in asked(space, cost, batches=12, batch=1) for point in batch]
    for i, (value, kind) in enumerate(points):
        later = [float(other) for other, other_kind in points[i + 1 :] if other_kind == kind]
        assert float(value) == 0.1 or all(other < float(value) for other in later)
    every = asked(space, cost, batches=12, batch=1, sampler="random")
    assert len(points) < 8 == sum(map(len, every))


def test_a_grid_has_every_point_in_random_order_and_needs_lists():
    points = asked(Space((GRID, KIND), ()), lambda point: 0.0, sampler="grid")
    flat = [point for batch in points for point in batch]
    assert len(set(flat)) == len(flat) == 14
    assert flat != sorted(flat)
    with pytest.raises(UserError, match=r"rate: got 'interval.*must be a list of values"):
        Sampler(Space((RATES,), ()), Search(sampler="grid"), LEAST)


def test_a_search_without_keys_has_one_point():
    assert asked(Space((), ("algo=optimum",)), lambda point: 1.0) == [[()], [], [], []]


def test_several_metrics_and_pruned_points():
    two = [Objective("f1", "maximize"), Objective("density", "minimize")]
    points = asked(Space((RATES,), ()), lambda point: [float(point[0]), float(point[0]) ** 2], objectives=two)
    assert sum(map(len, points)) == 16
    sampler = Sampler(Space((RATES,), ()), Search(), LEAST)
    for point in sampler.ask(4):
        sampler.tell(point, None, (3, 0.5))
    assert len(sampler.ask(4)) == 4
