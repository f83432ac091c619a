from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.problem.data import ClientData
from fco_cli.problem.streams import COHORTS, GOLDEN, Stream, batches_of, generator, mixed
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams


def clients_of(sizes):
    rows = sum(sizes)
    return ClientData(np.zeros((rows, 1)), np.zeros(rows), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def hparams_of(clients_per_round, batch_size, local_epochs, weighting="uniform"):
    return Hparams(0.1, 1.0, 5, clients_per_round, batch_size, local_epochs, weighting=weighting)


def cohort_of(data, hparams, seed, round_index):
    return Sampler(data.sizes, hparams, seed).cohort(round_index)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 10),
    data=st.data(),
)
def test_every_row_once_per_epoch_in_batches(sizes, batch_size, epochs, seed, data):
    clients, hparams = clients_of(sizes), hparams_of(data.draw(st.integers(1, len(sizes))), batch_size, epochs)
    cohort = cohort_of(clients, hparams, seed, 3)
    assert len(set(cohort.clients.tolist())) == hparams.clients_per_round  # without replacement
    for i, m in enumerate(cohort.clients):
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        full, rest = divmod(sizes[m], batch_size)
        assert np.diff(edges).tolist() == ([batch_size] * full + [rest] * (rest > 0)) * epochs
        rows = cohort.order[edges[0] : edges[-1]].reshape(epochs, sizes[m])
        for epoch in rows:
            assert sorted(epoch.tolist()) == list(range(sizes[m]))
    assert cohort.steps.tolist() == [epochs * -(-sizes[m] // batch_size) for m in cohort.clients]


@pytest.mark.parametrize(("last_batch", "widths"), [("keep", [10] * 12 + [8]), ("drop", [10] * 12)])
def test_128_rows_in_tens_make_13_batches_or_12(last_batch, widths):
    cohort = cohort_of(clients_of([128] * 4), replace(hparams_of(4, 10, 1), last_batch=last_batch), 0, 0)
    assert np.diff(cohort.edges).tolist() == widths * 4


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    last_batch=st.sampled_from(["drop", "straddle"]),
    pace=st.sampled_from(["epochs", "equal"]),
)
def test_drop_and_straddle_use_the_same_epochs(sizes, batch_size, epochs, last_batch, pace):
    """With drop, the remaining rows of an epoch are in no batch; with straddle, epochs are concatenated."""
    hparams = replace(hparams_of(len(sizes), batch_size, epochs), last_batch=last_batch)
    sampler = Sampler(np.array(sizes), hparams, 0, pace)
    cohort = sampler.cohort(3)
    for i, m in enumerate(cohort.clients):
        many = int(cohort.steps[i]) * batch_size  # epochs, more than needed
        order, _, _ = batches_of(0, 3, np.array([m]), np.array([sizes[m]]), batch_size, many)
        rows = order.reshape(many, sizes[m])
        if last_batch == "drop":
            cut = [epoch[at : at + batch_size].tolist() for epoch in rows for at in range(0, sizes[m], batch_size)]
            expected = [batch for batch in cut if len(batch) == min(batch_size, sizes[m])]
            steps = max(1, sizes[m] // batch_size) * epochs
        else:
            taken = (rows[:epochs] if pace == "epochs" else rows).ravel()
            expected = [taken[at : at + batch_size].tolist() for at in range(0, len(taken), batch_size)]
            steps = -(-sizes[m] * epochs // batch_size)
        if pace == "epochs":
            assert sampler.steps[m] == cohort.steps[i] == steps
        edges = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        batches = [cohort.order[low:high].tolist() for low, high in pairwise(edges)]
        assert batches == expected[: cohort.steps[i]]


def test_cohorts_depend_on_seed_and_round_only():
    """The draw does not depend on earlier draws, but on the seed and the round."""
    data, hparams = clients_of([9] * 20), hparams_of(5, 4, 2)

    def draw(seed, round_index):
        cohort = cohort_of(data, hparams, seed, round_index)
        return tuple(cohort.clients), tuple(cohort.order)

    first = draw(0, 7)
    others = [draw(0, 8), draw(1, 7), draw(7, 0)]
    assert draw(0, 7) == first
    assert first not in others


def test_a_reset_generator_equals_a_new_one():
    """The generator keeps half of a 64-bit number after an odd number of 32-bit draws; resetting discards it."""
    stream = Stream(5, COHORTS)
    for index in (7, 0, 2**40, 7):
        random, new = stream.at(index), generator(5, COHORTS, index)
        for draw in (lambda one: one.choice(64, 10, replace=False), lambda one: one.integers(2**32, dtype=np.uint32)):
            np.testing.assert_array_equal(draw(random), draw(new))


def test_rates_and_rounds_do_not_change_the_draw():
    """Jobs of a sweep sample the same clients."""
    data = clients_of([9] * 20)
    one = cohort_of(data, Hparams(0.1, 1.0, 5, 5, 4, 1), 0, 2)
    other = cohort_of(data, Hparams(0.7, 0.3, 50, 5, 4, 1), 0, 2)
    np.testing.assert_array_equal(one.order, other.order)


def test_clients_are_sampled_uniformly():
    """Uniform: over 400 rounds of 5 out of 20 each is drawn 100 times, give or take five standard deviations."""
    data, hparams = clients_of([1] * 20), hparams_of(5, 1, 1)
    counts = np.bincount(np.concatenate([cohort_of(data, hparams, 0, r).clients for r in range(400)]))
    assert np.abs(counts - 100).max() < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_epochs_are_shuffled_anew():
    cohort = cohort_of(clients_of([50]), hparams_of(1, 10, 2), 0, 0)
    assert cohort.order[:50].tolist() != cohort.order[50:].tolist()
    assert cohort.order[:50].tolist() != list(range(50))


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", [1, 1, 1]), ("examples", [7, 4, 9])])
def test_weights(weighting, expected):
    cohort = cohort_of(clients_of([7, 4, 9]), hparams_of(3, 5, 1, weighting), 0, 0)
    np.testing.assert_array_equal(cohort.weights[np.argsort(cohort.clients)], expected)


def test_a_client_draws_its_batches_independently():
    """A site has the seed, the round, its index and its size, and draws the same batches as in the whole cohort."""
    data = clients_of([9, 4, 13, 7, 21])
    cohort = cohort_of(data, hparams_of(4, 4, 2), 5, 11)
    for i, m in enumerate(cohort.clients):
        order, edges, first = batches_of(5, 11, np.array([m]), data.sizes[[m]], 4, 2)
        own = cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]
        np.testing.assert_array_equal(edges, own - own[0])
        np.testing.assert_array_equal(order, cohort.order[own[0] : own[-1]])
        assert first.tolist() == [0, len(edges) - 1]


def test_shuffles_are_uniform():
    """All 24 orders of 4 rows, over 24,000 rounds: chi squared with 23 degrees of freedom, its 1 - 1e-6 quantile."""
    sizes, clients = np.array([4]), np.array([0])
    orders = [tuple(batches_of(0, r, clients, sizes, 4, 1)[0]) for r in range(24_000)]
    counts = np.array(list(Counter(orders).values()))
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 73


def test_split_mix_64_is_the_published_generator():
    """The first outputs of SplitMix64 for the seed 1234567, as printed by its authors' reference code."""
    state, golden = 1234567, int(GOLDEN)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [int(mixed(np.uint64((state + (n + 1) * golden) % 2**64))) for n in range(4)] == expected


def test_steps_and_weights_of_all_clients():
    sampler = Sampler(np.array([7, 4, 9]), hparams_of(2, 4, 3, "examples"), 0)
    assert sampler.steps.tolist() == [6, 3, 9]
    assert sampler.mean_steps == pytest.approx((7 * 6 + 4 * 3 + 9 * 9) / 20)
    assert sampler.cohort(0).total_weight == 20


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 3),
    pace=st.sampled_from(["equal", "geometric"]),
)
def test_clients_that_take_equally_many_steps(sizes, batch_size, epochs, pace):
    """All clients have the same number of batches, from fresh epochs, or exactly those of their epochs if equal."""
    data, hparams = clients_of(sizes), hparams_of(len(sizes), batch_size, epochs)
    usual, cohort = (Sampler(data.sizes, hparams, 5, each).cohort(3) for each in ("epochs", pace))
    assert cohort.mean_steps == round(usual.mean_steps)
    assert len(set(cohort.steps.tolist())) == 1
    if pace == "equal":
        assert cohort.steps[0] == cohort.mean_steps
    np.testing.assert_array_equal(cohort.clients, usual.clients)
    for i, m in enumerate(cohort.clients):
        both = [one.edges[one.first[i] : one.first[i + 1] + 1] for one in (usual, cohort)]
        full, rest = divmod(sizes[m], batch_size)
        widths = ([batch_size] * full + [rest] * (rest > 0)) * int(cohort.steps[i])
        assert np.diff(both[1]).tolist() == widths[: cohort.steps[i]]
        rows = [one.order[edges[0] : edges[-1]] for one, edges in zip((usual, cohort), both, strict=True)]
        common = min(map(len, rows))
        np.testing.assert_array_equal(rows[0][:common], rows[1][:common])
        for low in range(0, len(rows[1]) - sizes[m] + 1, sizes[m]):
            assert sorted(rows[1][low : low + sizes[m]].tolist()) == list(range(sizes[m]))


def test_geometric_steps():
    """Geometric with the mean of the epochs, a function of the seed and the round."""
    hparams = hparams_of(3, 2, 2)  # K = 8, 4 and 6
    sampler = Sampler(np.array([7, 4, 5]), hparams, 0, "geometric")
    drawn = np.array([sampler.cohort(r).steps[0] for r in range(2000)])
    again = [Sampler(np.array([7, 4, 5]), hparams, 0, "geometric").cohort(r).steps[0] for r in (1999, 0)]
    assert again == [drawn[1999], drawn[0]]
    assert drawn[:20].tolist() != [
        Sampler(np.array([7, 4, 5]), hparams, 1, "geometric").cohort(r).steps[0] for r in range(20)
    ]
    assert abs(drawn.mean() - 6) < 5 * np.sqrt(30 / 2000)  # five standard deviations
    assert abs((drawn == 1).mean() - 1 / 6) < 5 * np.sqrt(5 / 36 / 2000)
