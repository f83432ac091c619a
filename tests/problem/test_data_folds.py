"""Assignment of rows to cross-validation folds."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import FOLD_UNITS, ClientData, FoldAssignment


def data_of(*sizes: int, positives: float = 0.3) -> ClientData:
    rows = sum(sizes)
    y = (np.random.default_rng(1).random(rows) < positives).astype(float)
    return ClientData(np.zeros((rows, 2)), y, np.append(0, np.cumsum(sizes)))


def folds_of(data: ClientData, folds: int, by: str, classes: bool, seed: int) -> np.ndarray:
    return FoldAssignment.of(data, folds, by, classes, seed).members(data)


def test_folds_are_balanced_within_clients_and_classes():
    data = data_of(47, 20, 9)
    members = folds_of(data, 5, "rows", classes=True, seed=3)
    for m in range(3):
        own = data.owners == m
        counts = np.bincount(members[own], minlength=5)
        assert np.ptp(counts) <= 1
        positives = np.bincount(members[own & (data.y == 1)], minlength=5)
        assert np.ptp(positives) <= 1


def test_the_folds_of_a_client_depend_on_its_own_rows_only():
    alone = folds_of(data_of(12, 10), 4, "rows", classes=False, seed=3)
    with_other = folds_of(data_of(12, 31), 4, "rows", classes=False, seed=3)
    np.testing.assert_array_equal(alone[:12], with_other[:12])
    assert (folds_of(data_of(12, 10), 4, "rows", False, seed=4) != alone).any()


def test_folds_of_whole_clients():
    data = data_of(5, 6, 7, 8, 9)
    members = folds_of(data, 2, "clients", classes=True, seed=0)
    assert all(len(set(members[data.owners == m])) == 1 for m in range(5))
    assert sorted(np.bincount([members[data.owners == m][0] for m in range(5)])) == [2, 3]
    np.testing.assert_array_equal(folds_of(data, 10, "each_client", True, 0), data.owners)


@pytest.mark.parametrize(
    ("sizes", "folds", "by", "line"),
    [
        ((3, 2), 6, "rows", "path.folds: got 6, must be at most 5, the number of training rows"),
        ((3, 2), 3, "clients", "path.folds: got 3, must be at most 2, the number of training clients"),
        ((5,), 3, "each_client", "path.by: got 'each_client', must be rows, because there is only one client"),
    ],
)
def test_more_folds_than_rows_or_clients_are_rejected(sizes, folds, by, line):
    with pytest.raises(UserError) as caught:
        folds_of(data_of(*sizes), folds, by, False, 0)
    assert str(caught.value) == line


def test_empty_folds_are_rejected():
    """Five clients with one row each may assign their rows to fewer than five folds."""
    with pytest.raises(UserError, match=r"^path.folds: got 5, must be fewer"):
        _ = [folds_of(data_of(1, 1, 1, 1, 1), 5, "rows", False, seed) for seed in range(20)]


@pytest.mark.parametrize("by", FOLD_UNITS)
def test_a_client_computes_its_part_of_a_fold(by):
    """A site needs only its own labels and the number of clients."""
    data = data_of(12, 9, 17)
    for held_out in FoldAssignment.of(data, 2, by, True, 5):
        rows = held_out.rows(data)
        for m in range(3):
            own = data.owners == m
            np.testing.assert_array_equal(held_out.rows_of(m, 3, data.y[own]), rows[own])
        np.testing.assert_array_equal(held_out.trains(3), [not rows[data.owners == m].all() for m in range(3)])


def test_rows_of_one_group_are_in_one_fold():
    random = np.random.default_rng(3)
    groups = random.integers(0, 30, 200)
    data = ClientData(
        np.zeros((200, 1)), random.integers(0, 2, 200).astype(float), np.array([0, 120, 200]), groups=groups
    )
    assignment = FoldAssignment.of(data, 5, "rows", True, 0)
    folds = assignment.members(data)
    for client in (slice(0, 120), slice(120, 200)):
        for group in np.unique(groups[client]):
            assert len(np.unique(folds[client][groups[client] == group])) == 1
    for m, client in enumerate((slice(0, 120), slice(120, 200))):  # as at a site, which names its groups by texts
        names = np.array([f"{group:03d}" for group in groups[client]])
        masks = [fold.rows_of(m, 2, data.y[client], names) for fold in assignment]
        assert [mask.tolist() for mask in masks] == [(folds[client] == k).tolist() for k in range(5)]
    single = ClientData(data.x, data.y, data.offsets, groups=np.arange(200))
    assert (assignment.members(single) == assignment.members(ClientData(data.x, data.y, data.offsets))).all()


def test_groups_are_kept_with_their_rows():
    data = ClientData(np.zeros((4, 1)), np.zeros(4), np.array([0, 2, 4]), groups=np.array([5, 6, 7, 7]))
    assert data.take(np.array([True, False, True, True])).groups.tolist() == [5, 7, 7]
