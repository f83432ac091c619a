from __future__ import annotations

import numpy as np
import pytest
from fco_cli.simulation.settings import Settings
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.problem.data import ClientData
from fco_cli.simulation.sampling import sample_cohort


def clients_of(sizes):
    rows = sum(sizes)
    return ClientData(np.zeros((rows, 1)), np.zeros(rows), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def settings_of(clients_per_round, batch_size, local_epochs, weighting="uniform"):
    return Settings(0.1, 1.0, 5, clients_per_round, batch_size, local_epochs, weighting=weighting)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 10),
    data=st.data(),
)
def test_every_row_once_per_epoch_in_batches(sizes, batch_size, epochs, seed, data):
    clients, settings = clients_of(sizes), settings_of(data.draw(st.integers(1, len(sizes))), batch_size, epochs)
    cohort = sample_cohort(clients, settings, seed, 3)
    assert len(set(cohort.clients.tolist())) == settings.clients_per_round  # without replacement
    for i, m in enumerate(cohort.clients):
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        full, rest = divmod(sizes[m], batch_size)
        assert np.diff(edges).tolist() == ([batch_size] * full + [rest] * (rest > 0)) * epochs
        rows = cohort.order[edges[0] : edges[-1]].reshape(epochs, sizes[m])
        for epoch in rows:
            assert sorted(epoch.tolist()) == list(range(clients.start[m], clients.start[m + 1]))
    assert cohort.steps.tolist() == [epochs * -(-sizes[m] // batch_size) for m in cohort.clients]


def test_128_rows_in_tens_make_13_batches():
    cohort = sample_cohort(clients_of([128] * 4), settings_of(4, 10, 1), 0, 0)
    np.testing.assert_array_equal(cohort.steps, 13)
    assert np.diff(cohort.edges)[12] == 8


def test_a_function_of_seed_and_round_alone():
    """The same again, whatever was drawn before; another seed or another round is another draw."""
    data, settings = clients_of([9] * 20), settings_of(5, 4, 2)

    def draw(seed, round_index):
        cohort = sample_cohort(data, settings, seed, round_index)
        return tuple(cohort.clients), tuple(cohort.order)

    first = draw(0, 7)
    others = [draw(0, 8), draw(1, 7), draw(7, 0)]
    assert draw(0, 7) == first
    assert first not in others


def test_rates_and_rounds_do_not_change_the_draw():
    """Jobs of a sweep see the same clients."""
    data = clients_of([9] * 20)
    one = sample_cohort(data, Settings(0.1, 1.0, 5, 5, 4, 1), 0, 2)
    other = sample_cohort(data, Settings(0.7, 0.3, 50, 5, 4, 1), 0, 2)
    np.testing.assert_array_equal(one.order, other.order)


def test_every_client_has_its_turn():
    """Uniform: over 400 rounds of 5 out of 20 each is drawn 100 times, give or take five standard deviations."""
    data, settings = clients_of([1] * 20), settings_of(5, 1, 1)
    counts = np.bincount(np.concatenate([sample_cohort(data, settings, 0, r).clients for r in range(400)]))
    assert np.abs(counts - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_epochs_are_shuffled_anew():
    cohort = sample_cohort(clients_of([50]), settings_of(1, 10, 2), 0, 0)
    assert cohort.order[:50].tolist() != cohort.order[50:].tolist()
    assert cohort.order[:50].tolist() != list(range(50))


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", [1, 1, 1]), ("examples", [7, 4, 9])])
def test_weights(weighting, expected):
    cohort = sample_cohort(clients_of([7, 4, 9]), settings_of(3, 5, 1, weighting), 0, 0)
    np.testing.assert_array_equal(cohort.weights[np.argsort(cohort.clients)], expected)
