from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fco_cli.problem.streams import DISPATCHES, generator
from fco_cli.simulation.systems import Network, UniformParticipation
from fco_cli.simulation.systems.aggregation import Buffered
from fco_cli.simulation.systems.participation import Dropout
from fco_cli.simulation.systems.time_model import Lognormal

TIMES = Lognormal(gradient_sigma=1.0, jitter=0.4)


def buffered(participation=None, times=TIMES, **options):
    return Network(participation or UniformParticipation(), times, Buffered(**options))


def plans_of(network, sampler, costs, rounds):
    schedule = network.schedule(sampler)
    return [schedule.plan(r, costs) for r in range(rounds)]


def events(sampler, costs, network, rounds):
    """Return (seconds, [(client, version, start)]) of every update by a direct simulation of the clients."""
    settings, clients = network.aggregation, len(sampler.sizes)
    speeds = network.time_model.speeds(sampler.seed, clients)
    heap, busy, version, now, starts, updates = [], set(), 0, 0, 0, []

    def start():
        nonlocal starts
        idle = [m for m in range(clients) if m not in busy]
        m = idle[generator(sampler.seed, DISPATCHES, starts).integers(len(idle))]
        factor = np.exp(0.4 * generator(sampler.seed, 22, starts).standard_normal(clients)[m])
        bytes_seconds = 2000 / speeds.down_bandwidth[m] + 1000 / speeds.up_bandwidth[m]
        own = 2 * speeds.latency[m] + bytes_seconds + speeds.gradient_seconds[m] * sampler.sizes[m] * factor
        heapq.heappush(heap, (now + round(1e9 * own), starts, m, version))
        busy.add(m)
        starts += 1

    for _ in range(sampler.sampled):
        start()
    buffer = []
    while len(updates) < rounds:
        now, number, m, born = heapq.heappop(heap)
        busy.remove(m)
        if settings.max_staleness is None or version - born <= settings.max_staleness:
            buffer.append((m, born, number))
        if len(buffer) == settings.buffer:
            version += 1
            updates.append((now, buffer))
            buffer = []
        start()
    return updates


@pytest.mark.parametrize("options", [{"buffer": 1}, {"buffer": 2}, {"buffer": 3, "max_staleness": 1}])
def test_the_schedule_is_that_of_a_direct_simulation(make_sampler, costs, options):
    sampler, network = make_sampler(sampled=4, seed=3), buffered(**options)
    expected = events(sampler, costs, network, 30)
    now = 0
    for r, (plan, (then, messages)) in enumerate(zip(plans_of(network, sampler, costs, 30), expected, strict=True)):
        now += plan.nanoseconds[0]
        assert abs(now - then) <= 60  # rounded to nanoseconds once per start
        assert list(zip(plan.cohort.clients.tolist(), plan.cohort.stale.versions.tolist(), strict=True)) == [
            (m, born) for m, born, _ in messages
        ]
        ages = np.array([r - born for _, born, _ in messages])
        np.testing.assert_allclose(plan.cohort.weights, 1 / np.sqrt(1 + ages))


@given(
    seed=st.integers(0, 1000), sampled=st.integers(1, 6), buffer=st.integers(1, 5), sigma=st.floats(0, 1),
    limit=st.one_of(st.none(), st.integers(0, 3)),
)  # fmt: skip
def test_the_staleness_is_bounded(make_sampler, costs, seed, sampled, buffer, sigma, limit):
    """In the longest time of a client, each of C places sends at most longest / shortest + 1 messages.

    At most C (longest / shortest + 1) / B updates therefore happen while a client computes.
    """
    sampler = make_sampler(sampled=sampled, seed=seed)
    network = buffered(times=Lognormal(gradient_sigma=sigma), buffer=buffer, max_staleness=limit)
    speeds = network.time_model.speeds(seed, 6)
    times = 2 * speeds.latency + 2000 / speeds.down_bandwidth + 1000 / speeds.up_bandwidth
    times += speeds.gradient_seconds * sampler.sizes
    bound = math.ceil(sampled * (times.max() / times.min() + 1) / buffer)
    ages = [r - plan.cohort.stale.versions for r, plan in enumerate(plans_of(network, sampler, costs, 25))]
    assert min(age.min() for age in ages) >= 0
    assert max(age.max() for age in ages) <= (bound if limit is None else min(bound, limit))


def test_ties_are_decided_by_the_order_of_the_starts(make_sampler, costs, equal_times):
    sampler = make_sampler(sizes=(6,) * 5, sampled=4)
    first = plans_of(buffered(times=equal_times, buffer=4), sampler, costs, 2)
    starts = np.array([key for plan in first for key in plan.cohort.stale.versions])
    assert starts.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]  # the places of the first three were filled before the update
    assert first[1].nanoseconds[0] == first[0].nanoseconds[0]


def test_a_client_that_drops_out_is_replaced(make_sampler, costs):
    sampler = make_sampler(sampled=4)
    plans = plans_of(buffered(Dropout(probability=0.5), buffer=2), sampler, costs, 40)
    absent = sum(plan.absent for plan in plans)
    assert all(len(plan.cohort.clients) == 2 for plan in plans)
    assert 40 < absent < 130  # 80 expected
    assert all(plan.cohort.invited == 2 + plan.absent for plan in plans)


def test_rounds_can_be_planned_again(make_sampler, costs):
    network, sampler = buffered(buffer=2), make_sampler(sampled=4)
    schedule = network.schedule(sampler)
    plans = [schedule.plan(r, costs) for r in range(6)]
    for r in (5, 2, 4):
        again = schedule.plan(r, costs)
        np.testing.assert_array_equal(again.cohort.order, plans[r].cohort.order)
        np.testing.assert_array_equal(again.cohort.clients, plans[r].cohort.clients)
        assert again.nanoseconds.tolist() == plans[r].nanoseconds.tolist()


@pytest.mark.parametrize("algo", ["feddualavg", "feddualavg_osp", "fast_fedda", "fedmid", "fedavgm"])
def test_messages_start_from_earlier_states(on_network, simulation_of, algo):
    """Compare with clients that compute one by one, each from the stored state of its start."""
    psi = "none" if algo == "fedavgm" else None
    setup = on_network(buffered(buffer=2, exponent=0.7), algo, psi=psi, clients_per_round=4, rounds=12)
    simulation = simulation_of(setup, [0.002, 0.004])
    algorithm, data = simulation.algorithm, setup.problem.data
    states, state, ages = [], {name: values.copy() for name, values in simulation.state.items()}, []
    schedule = setup.network.schedule(simulation.sampler)
    for r in range(12):
        states.append(state)
        cohort = schedule.plan(r, algorithm).cohort
        messages = []
        for i, m in enumerate(cohort.clients):
            rows = data.client(m)
            part = cohort.stale.parts[i]
            received = states[cohort.stale.versions[i]]
            message, _ = algorithm.client_update(received, np.zeros((0, 2, 20)), rows, part.order, part.edges)
            messages.append(message.copy())
        ages += (r - cohort.stale.versions).tolist()
        own = replace(cohort, stale=None)
        state = algorithm.finish_round(state, own, np.array(messages), None).state
    assert max(ages) > 1
    while simulation.advance():
        pass
    np.testing.assert_allclose([job.model for job in simulation.finished], algorithm.output(state), rtol=1e-12)


def test_a_single_client_at_a_time_is_never_stale(make_sampler, costs):
    for r, plan in enumerate(plans_of(buffered(buffer=1), make_sampler(sampled=1), costs, 20)):
        assert plan.cohort.stale.versions.tolist() == [r]
        assert plan.cohort.stale.kept == {r + 1}


NETWORKS = {
    "buffered": buffered(buffer=2),
    "limited": buffered(Dropout(probability=0.3), buffer=2, max_staleness=1),
    "dropout": Network(Dropout(probability=0.7)),
    "timed": Network(time_model=TIMES),
}


@pytest.mark.machine_code
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_alone_in_a_stack_and_resumed(on_network, simulate, name):
    setup = on_network(NETWORKS[name], clients_per_round=4, rounds=16)
    rates = [0.001, 1e60, 0.004, 1.0]
    stacked = simulate(setup, rates, seconds=1.0)
    assert stacked[1].diverged is not None
    for j in (0, 2):
        (alone,) = simulate(setup, rates[j : j + 1])
        half = simulate(setup, rates[j : j + 1], rounds=7)
        (resumed,) = simulate(setup, rates[j : j + 1], half)
        for other in (alone, resumed):
            np.testing.assert_array_equal(stacked[j].model, other.model)
            for metric in other.history.names:
                np.testing.assert_array_equal(stacked[j].history[metric], other.history[metric], err_msg=metric)
