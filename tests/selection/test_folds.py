from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.selection.folds import folds_of
from fco_cli.selection.stability import Stability, halves_of, selected


def data_of(*sizes: int, positives: float = 0.3) -> ClientData:
    rows = sum(sizes)
    y = (np.random.default_rng(1).random(rows) < positives).astype(float)
    return ClientData(np.zeros((rows, 2)), y, np.append(0, np.cumsum(sizes)))


def test_rows_of_every_client_are_dealt_evenly_class_by_class():
    data = data_of(47, 20, 9)
    members = folds_of(data, 5, "rows", classes=True, seed=3)
    for m in range(3):
        own = data.owners == m
        counts = np.bincount(members[own], minlength=5)
        assert np.ptp(counts) <= 1
        positives = np.bincount(members[own & (data.y == 1)], minlength=5)
        assert np.ptp(positives) <= 1


def test_a_clients_folds_depend_on_its_own_rows_alone():
    alone = folds_of(data_of(12, 10), 4, "rows", classes=False, seed=3)
    beside = folds_of(data_of(12, 31), 4, "rows", classes=False, seed=3)
    np.testing.assert_array_equal(alone[:12], beside[:12])
    assert (folds_of(data_of(12, 10), 4, "rows", False, seed=4) != alone).any()


def test_whole_clients():
    data = data_of(5, 6, 7, 8, 9)
    members = folds_of(data, 2, "clients", classes=True, seed=0)
    assert all(len(set(members[data.owners == m])) == 1 for m in range(5))
    assert sorted(np.bincount([members[data.owners == m][0] for m in range(5)])) == [2, 3]
    np.testing.assert_array_equal(folds_of(data, 10, "each_client", True, 0), data.owners)


@pytest.mark.parametrize(
    ("sizes", "folds", "by", "line"),
    [
        ((3, 2), 6, "rows", "path.folds: got 6, must be at most 5, the rows that train"),
        ((3, 2), 3, "clients", "path.folds: got 3, must be at most 2, the clients that train"),
        ((5,), 3, "each_client", "path.by: got 'each_client', must be rows: there is one client only"),
    ],
)
def test_more_folds_than_rows_or_clients_are_refused(sizes, folds, by, line):
    with pytest.raises(UserError) as caught:
        folds_of(data_of(*sizes), folds, by, False, 0)
    assert str(caught.value) == line


def test_folds_that_hold_nothing_are_refused():
    """Five clients of one row each may all deal it to the same few folds."""
    with pytest.raises(UserError, match=r"^path.folds: got 5, must be fewer"):
        _ = [folds_of(data_of(1, 1, 1, 1, 1), 5, "rows", False, seed) for seed in range(20)]


# Stability selection.


@pytest.mark.parametrize("by", ["rows", "clients", "each_client"])
def test_halves_come_in_complementary_pairs(by):
    data = data_of(10, 12, 9, 11)
    halves = list(halves_of(data, 3, by, False, 0))
    assert len(halves) == 6
    for one, other in zip(halves[::2], halves[1::2], strict=True):
        assert (one != other).all()
    assert (halves[0] != halves[2]).any()


def test_frequencies_and_the_bound_by_hand():
    """Two pairs, three values, four features: a feature counts from where it first has a weight."""
    found = np.zeros((4, 3, 4), dtype=bool)
    found[:, 1, 0] = True  # of all halves, but only at the middle value
    found[:2, 2, 1] = True
    stability = Stability.of(found, threshold=0.75, errors=1.0)
    np.testing.assert_allclose(stability.frequency, [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0.5, 0, 0]])
    np.testing.assert_allclose(stability.bound, [0, 1 / (0.5 * 4), 1.5**2 / (0.5 * 4)])
    assert (stability.place, stability.stable.tolist()) == (1, [0])
    assert Stability.of(found, 0.75, 2.0).place == 2


def test_noise_is_rarely_stable():
    """On pure noise at most `errors` features are expected to be called stable; here far fewer are."""
    random = np.random.default_rng(0)
    counts = []
    for _ in range(50):
        order = random.random((20, 1, 40)) < 0.1
        counts.append(len(Stability.of(np.repeat(order, 2, axis=1), 0.75, 1.0).stable))
    assert np.mean(counts) <= 1.0


def test_features_are_known_by_their_names(make_problem):
    problem = make_problem(features=3)
    from fco_cli.problem.problem import TaskData

    half = TaskData(problem.data, problem.model, problem.loss, features=["c", "a", "d"])
    models = np.array([[1.0, 0.0, 2.0, 9.0]])  # c, a, d and the bias
    np.testing.assert_array_equal(selected(half, models, ["a", "b", "c", "d"]), [[False, False, True, True]])
