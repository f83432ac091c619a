"""Suppressed counts cannot be recovered from the published ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fco_cli.table1.suppression import possible_values, suppressed_cells, suppressed_means

LEAST = 5


def with_totals(counts):
    return np.column_stack([counts, counts.sum(axis=1)])


def tables_with(published, hidden, most):
    """Yield all tables of counts up to `most` that agree with the published cells and the column sums."""
    places = [tuple(map(int, place)) for place in np.argwhere(hidden)]
    for values in itertools.product(range(most + 1), repeat=len(places)):
        table = published.copy()
        for place, value in zip(places, values, strict=True):
            table[place] = value
        is_consistent = (table.sum(axis=0) == published.sum(axis=0)).all()
        if is_consistent and (table[:, :-1].sum(axis=1) == table[:, -1]).all():
            yield table


def test_possible_values_are_those_of_all_consistent_tables():
    table = with_totals(np.array([[2, 7, 1], [6, 3, 8]]))
    hidden = np.array([[1, 0, 1, 0], [1, 0, 1, 0]], bool)
    found = np.array(list(tables_with(table, hidden, 10)))
    for row, column in np.argwhere(hidden):
        values = found[:, row, column]
        assert possible_values(table, hidden, row, column) == (values.min(), values.max())


@pytest.mark.parametrize("seed", range(12))
def test_no_small_count_can_be_recovered(seed):
    random = np.random.default_rng(seed)
    shape = random.integers(2, 5), random.integers(2, 5)
    counts = random.poisson(random.choice([1, 8, 30], size=shape))
    counts[0] += LEAST  # every client has rows enough
    table, hidden = with_totals(counts), suppressed_cells(counts, LEAST)
    small = (table > 0) & (table < LEAST)
    assert hidden[small].all()
    assert small.any() or not hidden.any()
    for row, column in np.argwhere(small):
        low, high = possible_values(table, hidden, row, column)
        assert high - low >= LEAST or hidden.all()
        assert low <= table[row, column] <= high


def test_one_small_count_alone_would_be_the_difference():
    counts = np.array([[40, 2, 30], [60, 50, 70]])
    hidden = suppressed_cells(counts, LEAST)
    assert hidden[0, 1]
    assert hidden[1, 1]  # the other cell of the column
    assert hidden[0].sum() >= 2
    assert hidden[1].sum() >= 2
    assert not suppressed_cells(counts, 2).any()
    assert not suppressed_cells(counts, 0).any()


@pytest.mark.parametrize(
    ("present", "small", "hidden", "is_total_hidden"),
    [
        ([100, 80, 90], [0, 0, 0], [0, 0, 0], False),
        ([100, 3, 90], [0, 1, 0], [0, 1, 1], False),  # with the next smallest one
        ([100, 3, 0], [0, 1, 1], [1, 1, 0], False),  # a client without values reveals nothing
        ([0, 3, 0], [1, 1, 1], [0, 1, 0], True),
        ([0, 30, 0], [0, 1, 0], [0, 1, 0], True),  # the mean of all clients is that of the only one with values
        ([2, 2, 90, 80], [1, 1, 0, 0], [1, 1, 0, 1], False),  # two with too few values together
    ],
)
def test_means_of_few_rows(present, small, hidden, is_total_hidden):
    mask, is_hidden = suppressed_means(np.array(present), np.array(small, bool), LEAST)
    assert (mask.astype(int).tolist(), is_hidden) == (hidden, is_total_hidden)
