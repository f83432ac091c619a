from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.simulation.systems import NoTimeModel, Synchronous, UniformParticipation
from fco_cli.simulation.systems.participation import Cyclic, Dropout, Trace


def schedule_of(sampler, participation, aggregation=None):
    return (aggregation or Synchronous()).schedule(sampler, participation, NoTimeModel())


def test_uniform_participation_draws_the_cohorts_of_the_sampler(make_sampler, costs):
    sampler = make_sampler()
    schedule = schedule_of(sampler, UniformParticipation())
    for r in range(5):
        plan, expected = schedule.plan(r, costs), sampler.cohort(r)
        for name in ("clients", "order", "edges", "first", "weights"):
            np.testing.assert_array_equal(getattr(plan.cohort, name), getattr(expected, name))
        assert (plan.absent, plan.cohort.scale) == (0, 1.0)


def test_groups_of_consecutive_clients_take_turns(make_sampler, costs):
    schedule = schedule_of(make_sampler(sampled=2), Cyclic(groups=3, period=2))
    clients = [sorted(schedule.plan(r, costs).cohort.clients.tolist()) for r in range(8)]
    assert clients == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [0, 1], [0, 1]]


def test_a_group_smaller_than_the_cohort_participates_as_a_whole(make_sampler, costs):
    plan = schedule_of(make_sampler(sampled=5), Cyclic(groups=3)).plan(1, costs)
    assert sorted(plan.cohort.clients.tolist()) == [2, 3]
    assert plan.absent == 0  # clients that are not available receive nothing


@pytest.mark.parametrize(
    "text",
    ["client,start,end\n0,1,2\n2,2,3\n0,4,4\n", "client,rounds\n2,2-3\n0,1-2 4\n", "rounds,client\n1 2 4,0\n2 3,2\n"],
)
def test_both_formats_of_a_trace(tmp_path, text):
    (tmp_path / "trace.csv").write_text(text)
    trace = Trace(path=str(tmp_path / "trace.csv"))
    available = [trace.available(0, r, 3).tolist() for r in range(5)]
    assert available == [[0], [0, 2], [2], [0], [0]]  # repeated after round 4
    np.testing.assert_allclose(trace.response_rates(3), [0.75, 0, 0.5])
    once = Trace(path=str(tmp_path / "trace.csv"), repeat=False)
    assert once.available(0, 3, 3).tolist() == [0]
    assert once.available(0, 4, 3).tolist() == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the columns are , must be client, start, end or client, rounds"),
        ("client,from\n1,2\n", "the columns are client, from, must be client, start, end or client, rounds"),
        ("client,start,end\n", "has no rows"),
        (
            "client,start,end\n3,1,2\n",
            "line 2: client is '3', must be a whole number from 0 to 2 (the task has 3 clients)",
        ),
        ("client,start,end\n0,1\n", "line 2: has 2 cells, must have 3"),
        ("client,start,end\n0,3,2\n", "line 2: end is '2', must be a whole number from 3 to 1000000"),
        ("client,rounds\n0,0\n", "line 2: start is '0', must be a whole number from 1 to 1000000"),
        ("client,rounds\n0,1 x\n", "line 2: start is 'x', must be a whole number from 1 to 1000000"),
        ("client,rounds\n0,\n", "no client is available in any round"),
    ],
)
def test_an_invalid_trace_is_one_line(tmp_path, text, reason):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=r"participation\.path") as refused:
        Trace(path=str(tmp_path / "t.csv")).check(3)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"participation.path: .*no\.csv: no such file"):
        Trace(path=str(tmp_path / "no.csv")).check(3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("client,probability\n0,0.5\n0,0.5\n", "line 3: client 0 has two rows"),
        ("client,probability\n0,0.5\n", "has no row for client 1"),
        ("client,probability\n0,1\n1,0\n", "line 2: probability is '1', must be a number >= 0 and below 1"),
        ("client,probability\n0,nan\n1,0\n", "line 2: probability is 'nan', must be a number >= 0 and below 1"),
    ],
)
def test_invalid_probabilities_are_one_line(tmp_path, text, reason):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UserError) as refused:
        Dropout(path=str(tmp_path / "p.csv")).check(2)
    assert reason in str(refused.value)


def test_a_dropout_is_a_function_of_seed_round_and_client():
    dropout = Dropout(probability=0.4)
    everyone = dropout.responding(7, 3, np.arange(50), 50)
    some = np.array([41, 3, 17])
    np.testing.assert_array_equal(dropout.responding(7, 3, some, 50), everyone[some])
    assert (dropout.responding(8, 3, np.arange(50), 50) != everyone).any()
    assert (dropout.responding(7, 4, np.arange(50), 50) != everyone).any()
    rate = np.mean([dropout.responding(0, r, np.arange(50), 50) for r in range(400)])
    assert abs(rate - 0.6) < 4 * np.sqrt(0.24 / 20_000)


class Given(Dropout):
    """Dropout with given responses."""

    def responding(self, seed, round_index, invited, clients):
        return self.mask[invited]


def expected_mean(sampler, participation, costs, messages, probabilities):
    """Return the mean of the messages over all combinations of responses, with means of no message left out."""
    schedule, total, never = schedule_of(sampler, participation), np.zeros(messages.shape[1]), 0.0
    for mask in product((False, True), repeat=len(messages)):
        participation.mask = np.array(mask)
        chance = np.where(participation.mask, 1 - probabilities, probabilities).prod()
        cohort = schedule.plan(0, costs).cohort
        if len(cohort.clients):
            mean = np.average(messages[cohort.clients], axis=0, weights=cohort.weights)
            total += chance * cohort.scale * mean
        else:
            never += chance
    return total, never


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_reweighted_dropouts_are_unbiased(tmp_path, make_sampler, costs, weighting):
    sizes, chances = (5, 9, 7, 4), np.array([0.1, 0.6, 0.3, 0.8])
    (tmp_path / "p.csv").write_text("client,probability\n" + "".join(f"{m},{p}\n" for m, p in enumerate(chances)))
    messages, path = np.random.default_rng(0).standard_normal((4, 3)), str(tmp_path / "p.csv")
    sampler = make_sampler(sizes, 4, weighting)
    full = np.average(messages, axis=0, weights=sampler.weights)
    mean, _ = expected_mean(sampler, Given(path=path, reweight=True), costs, messages, chances)
    np.testing.assert_allclose(mean, full, rtol=1e-12)
    biased, never = expected_mean(sampler, Given(path=path), costs, messages, chances)
    assert np.abs(biased / (1 - never) - full).max() > 0.05
    assert Given(path=path).is_biased(4)
    assert not Given(path=path, reweight=True).is_biased(4)


def test_equal_dropouts_are_unbiased_given_that_a_client_responds(make_sampler, costs):
    messages, chances = np.random.default_rng(1).standard_normal((4, 3)), np.full(4, 0.7)
    mean, never = expected_mean(make_sampler((5, 9, 7, 4), 4), Given(probability=0.7), costs, messages, chances)
    np.testing.assert_allclose(mean / (1 - never), messages.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(never, 0.7**4)
    assert not Given(probability=0.7).is_biased(4)


@pytest.mark.parametrize("reweight", [True, False])
def test_the_mean_over_a_period_of_a_trace(tmp_path, make_sampler, costs, reweight):
    """Clients 0 and 1 are available in both rounds, client 2 in the first only; all available clients are sampled."""
    (tmp_path / "t.csv").write_text("client,start,end\n0,1,2\n1,1,2\n2,1,1\n")
    schedule = schedule_of(make_sampler((5, 9, 7), 3), Trace(path=str(tmp_path / "t.csv"), reweight=reweight))
    weights, empty = schedule.update_weights(2, costs)
    expected = [1, 1, 1] if reweight else np.array([5, 5, 2]) / 12 * 3  # (1/3 + 1/2) / 2, ..., times 3
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    assert empty == 0


def test_unequal_groups_of_a_cycle_are_biased_unless_reweighted(make_sampler, costs):
    sampler = make_sampler((5, 9, 7, 4, 6), 5)
    assert Cyclic(groups=2).is_biased(5)
    assert not Cyclic(groups=2).is_biased(6)
    weights, _ = schedule_of(sampler, Cyclic(groups=2)).update_weights(2, costs)
    np.testing.assert_allclose(weights, [5 / 6] * 3 + [5 / 4] * 2)
    weights, _ = schedule_of(sampler, Cyclic(groups=2, reweight=True)).update_weights(2, costs)
    np.testing.assert_allclose(weights, np.ones(5))
