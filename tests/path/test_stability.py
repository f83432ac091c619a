"""Tests of stability selection."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.path.stability import Stability, complementary_halves, selected_features
from fco_cli.problem.data import ClientData


@pytest.mark.parametrize("by", ["rows", "clients", "each_client"])
def test_halves_come_in_complementary_pairs(by):
    sizes = np.array([10, 12, 9, 11])
    data = ClientData(np.zeros((42, 2)), np.zeros(42), np.append(0, np.cumsum(sizes)))
    halves = [half.rows(data) for half in complementary_halves(data, 3, by, False, 0)]
    assert len(halves) == 6
    for one, other in zip(halves[::2], halves[1::2], strict=True):
        assert (one != other).all()
    assert (halves[0] != halves[2]).any()


def test_frequencies_and_the_bound_by_hand():
    """Two pairs, three values, four features: a feature counts from the first value with a non-zero weight."""
    found = np.zeros((4, 3, 4), dtype=bool)
    found[:, 1, 0] = True  # on all halves, but only at the middle value
    found[:2, 2, 1] = True
    stability = Stability.of(found, threshold=0.75, errors=1.0)
    np.testing.assert_allclose(stability.frequency, [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0.5, 0, 0]])
    np.testing.assert_allclose(stability.bound, [0, 1 / (0.5 * 4), 1.5**2 / (0.5 * 4)])
    assert (stability.index, stability.stable.tolist()) == (1, [0])
    assert Stability.of(found, 0.75, 2.0).index == 2


def test_noise_is_rarely_stable():
    """On pure noise at most `errors` features are expected to be called stable; here far fewer are."""
    random = np.random.default_rng(0)
    counts = []
    for _ in range(50):
        order = random.random((20, 1, 40)) < 0.1
        counts.append(len(Stability.of(np.repeat(order, 2, axis=1), 0.75, 1.0).stable))
    assert np.mean(counts) <= 1.0


def test_features_are_matched_by_name(make_problem):
    problem = make_problem(features=3)
    from fco_cli.problem.problem import TaskData

    half = TaskData(problem.data, problem.model, problem.loss, features=["c", "a", "d"])
    models = np.array([[1.0, 0.0, 2.0, 9.0]])  # c, a, d and the bias
    np.testing.assert_array_equal(selected_features(half, models, ["a", "b", "c", "d"]), [[False, False, True, True]])
