from __future__ import annotations

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.streams import JITTER, generator
from fco_cli.simulation.systems import Network, NoTimeModel, Synchronous, UniformParticipation
from fco_cli.simulation.systems.participation import Dropout, Trace
from fco_cli.simulation.systems.time_model import Clock, Lognormal, TimesFromFile

SPEEDS = [(0.1, 100.0, 1000.0, 0.5), (0.2, 500.0, 400.0, 0.0), (0.0, 1000.0, 2000.0, 1.0)]


def seconds(m, gradients):
    gradient, up, down, latency = SPEEDS[m]
    return 2 * latency + 2000 / down + gradient * gradients + 1000 / up


def test_a_round_lasts_as_long_as_its_slowest_client(make_sampler, costs, speeds_file):
    sizes = (5, 9, 7)
    schedule = Synchronous().schedule(make_sampler(sizes, 2), UniformParticipation(), speeds_file(*SPEEDS))
    for r in range(4):
        plan = schedule.plan(r, costs)
        expected = max(seconds(m, sizes[m]) for m in plan.cohort.clients)
        assert plan.nanoseconds.tolist() == [round(1e9 * expected)]


def test_clients_after_the_deadline_are_left_out(make_sampler, costs, speeds_file):
    """Client 0 needs 13.5 s, client 1 8.8 s and client 2 4 s."""
    sampler, times = make_sampler((5, 9, 7), 3), speeds_file(*SPEEDS)
    plan = Synchronous(deadline=9.0).schedule(sampler, UniformParticipation(), times).plan(0, costs)
    assert sorted(plan.cohort.clients.tolist()) == [1, 2]
    assert (plan.absent, plan.cohort.invited, plan.nanoseconds.tolist()) == (1, 3, [9 * 10**9])
    on_time = Synchronous(deadline=20.0).schedule(sampler, UniformParticipation(), times).plan(0, costs)
    assert (on_time.absent, on_time.nanoseconds.tolist()) == (0, [13_500_000_000])
    nobody = Synchronous(deadline=0.5).schedule(sampler, UniformParticipation(), times).plan(0, costs)
    assert (nobody.absent, len(nobody.cohort.clients), nobody.nanoseconds.tolist()) == (3, 0, [500_000_000])


def test_the_size_of_messages_may_differ_between_jobs(speeds_file):
    times = Clock(speeds_file(*SPEEDS), 0, 3).nanoseconds(
        0, np.array([1, 0]), np.array([9, 5]), 2000, np.array([500, 1000])
    )
    expected = [[seconds(1, 9) - 1, seconds(1, 9)], [seconds(0, 5) - 5, seconds(0, 5)]]
    np.testing.assert_array_equal(times, np.rint(1e9 * np.array(expected)))


def test_jitter_is_a_function_of_seed_round_and_client(speeds_file):
    model = speeds_file(*SPEEDS)
    jittered = TimesFromFile(path=model.path, jitter=0.5)
    clock = Clock(jittered, 4, 3)
    times = clock.nanoseconds(6, np.array([2, 0]), np.array([7, 5]), 2000, 1000)[:, 0]
    factor = np.exp(0.5 * generator(4, JITTER, 6).standard_normal(3))
    expected = [seconds(2, 7), seconds(0, 0) + 0.5 * factor[0]]
    np.testing.assert_allclose(times, 1e9 * np.array(expected), rtol=1e-9)


def test_log_normal_speeds():
    speeds = Lognormal(gradient_seconds=0.01, gradient_sigma=0.5, latency=0.1).speeds(3, 4000)
    np.testing.assert_allclose(np.median(speeds.gradient_seconds), 0.01, rtol=0.05)
    np.testing.assert_allclose(np.log(speeds.gradient_seconds).std(), 0.5, rtol=0.05)
    np.testing.assert_array_equal(speeds.latency, 0.1)
    np.testing.assert_allclose(speeds.up_bandwidth / speeds.down_bandwidth, 0.2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"up_bandwidth": 0.0}, "time_model.up_bandwidth: got 0.0, must be a number > 0, in bytes per second"),
        ({"latency": -1.0}, "time_model.latency: got -1.0, must be a number >= 0"),
        ({"jitter": float("inf")}, "time_model.jitter: got inf, must be a number >= 0"),
    ],
)
def test_invalid_times_are_one_line(options, reason):
    with pytest.raises(UserError) as refused:
        Lognormal(**options)
    assert str(refused.value) == reason


def test_an_invalid_file_of_speeds_is_one_line(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("client,gradient_seconds,up_bandwidth,down_bandwidth,latency\n0,1,0,1,1\n")
    with pytest.raises(UserError, match=r"time_model.path: .*s.csv, line 2: up_bandwidth is '0', must be a number"):
        TimesFromFile(path=str(path)).speeds(0, 1)


def test_a_round_without_responses_leaves_the_model(tmp_path, on_network, simulate):
    (tmp_path / "t.csv").write_text("client,rounds\n0,1 3\n1,1 3-4\n5,1 3-8\n")
    network = Network(Trace(path=str(tmp_path / "t.csv")))
    for algo in ("feddualavg", "zhj", "feddualavg_m"):
        (job,) = simulate(on_network(network, algo), [0.002])
        objective = job.history["objective"]
        assert objective[1] == objective[2] != objective[3]
        assert job.diverged is None
        assert np.diff(job.history["vectors_up"])[[1, 3]].tolist()[0] == 0
        assert np.diff(job.history["vectors_down"])[1] == 0


def test_absent_clients_receive_and_do_not_send(on_network, simulate):
    (job,) = simulate(on_network(Network(Dropout(probability=0.5))), [0.002])
    up, down, absent = (np.array(job.history[name]) for name in ("vectors_up", "vectors_down", "clients_absent"))
    np.testing.assert_array_equal(down - up, absent)
    assert down[-1] == 8 * 3
    assert 0 < absent[-1] < 24


def test_the_record_states_the_weights_of_clients(on_network, simulation_of, tmp_path):
    (tmp_path / "t.csv").write_text("client,rounds\n0,1 3\n1,1 3-4\n5,1 3-8\n")
    simulation = simulation_of(on_network(Network(Trace(path=str(tmp_path / "t.csv")))), [0.002])
    (job,) = simulation.running
    while simulation.advance():
        pass
    weights = simulation.update_weights(job)
    assert weights.biased
    assert (weights.least, weights.without_messages) == (0.0, 1)
    assert weights.line.endswith(
        "3 of 6 clients never contributed; 1 of 8 rounds had no message and left the model unchanged"
    )
    plain = simulation_of(on_network(Network(time_model=Lognormal())), [0.002])
    (job,) = plain.running
    assert plain.update_weights(job) is None


def test_time_does_not_change_the_model(on_network, simulate):
    (timed,) = simulate(on_network(Network(time_model=Lognormal(jitter=0.3))), [0.002])
    (plain,) = simulate(on_network(Network()), [0.002])
    np.testing.assert_array_equal(timed.model, plain.model)
    assert [name for name in timed.history.names if name not in plain.history.names] == [
        "clients_absent", "simulated_seconds",
    ]  # fmt: skip
    assert (np.diff(timed.history["simulated_seconds"]) > 0).all()


def test_control_variates_keep_their_sum_when_clients_drop_out(on_network, simulation_of):
    """The server's c is the weighted mean of all clients' c_m, whoever responds."""
    for weighting in ("uniform", "examples"):
        setup = on_network(Network(Dropout(probability=0.6)), "scaffold_prox", weighting=weighting, rounds=9)
        simulation = simulation_of(setup, [0.002])
        for _ in range(8):
            simulation.advance()
        memory, algorithm = simulation.clients.memory.read(np.arange(6)), simulation.algorithm
        position = [array.name for array in algorithm.remembered].index("c")
        mean = np.average(memory[:, position, 0], axis=0, weights=simulation.sampler.weights)
        (job,) = simulation.snapshot()
        assert np.abs(mean).max() > 0.1
        np.testing.assert_allclose(job.state["c"], mean, rtol=1e-9, atol=1e-9)


def test_plain_settings_need_no_schedule(on_network, simulation_of):
    assert simulation_of(on_network(Network()), [0.01]).schedule is None
    assert Network(time_model=NoTimeModel()).is_plain
    assert not Network(aggregation=Synchronous(deadline=1.0)).is_plain
