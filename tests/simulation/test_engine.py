from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.clip_noise import ClipNoise, total_epsilon
from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.simulation import engine
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.engine import COUNTERS, EXPLOSION, Job, Simulation
from fco_cli.simulation.evaluate import History

GOOD = [0.001, 0.002, 0.005, 0.01]


def from_rates(setup, rates):
    return Varying.from_rates(setup.algorithm, setup.problem.regularizer, np.array(rates), np.full(len(rates), 0.7))


def assert_same_bits(one, other):
    assert one.history.keys() == other.history.keys()
    for name in one.history:
        np.testing.assert_array_equal(one.history[name], other.history[name], err_msg=name)
    np.testing.assert_array_equal(one.model, other.model)
    assert (one.round, one.diverged) == (other.round, other.diverged)
    np.testing.assert_array_equal(one.counters, other.counters)


@pytest.mark.machine_code
@pytest.mark.parametrize(
    ("task", "algo"),
    [
        ("lasso", "feddualavg"),
        *(pytest.param("nuclear", algo, marks=pytest.mark.slow) for algo in ("feddualavg", "fedmid")),
    ],
)
def test_a_job_has_the_same_bits_alone_and_in_a_stack(make_setup, simulate, task, algo):
    """Neighbors diverge in different rounds and leave the stack, which changes its size during the run."""
    setup = make_setup(task, algo, rounds=30)
    wild = [0.1, 1.0, 1e3, 1e60]  # each diverges earlier than the previous one
    for rates in ([GOOD[0], wild[1], GOOD[2]], (GOOD + wild + GOOD[::-1] + wild[::-1] + GOOD)):
        stacked = simulate(setup, rates)
        for rate in (GOOD[0], GOOD[2], wild[1]):
            (alone,) = simulate(setup, [rate])
            assert_same_bits(stacked[rates.index(rate)], alone)
    rounds = [job.diverged for job in stacked]
    assert all(number is None for number, rate in zip(rounds, rates, strict=True) if rate in GOOD)
    diverged = [rounds[rates.index(rate)] for rate in wild]
    assert all(diverged)
    assert diverged == sorted(diverged, reverse=True)
    assert diverged[0] > diverged[-1]


@pytest.fixture
def large_batches(monkeypatch):
    """Evaluate as many rounds in one batch as have been evaluated before."""
    monkeypatch.setattr(engine, "MAX_OVERRUN", 1.0)


ALL_ROWS = {"rounds": "auto", "most_rounds": 90, "tolerance": 0.3, "clients_per_round": "all", "batch_size": 100}


@pytest.mark.ci
@pytest.mark.parametrize("changes", [{}, {"eval_every": 3}, ALL_ROWS])
def test_batches_of_evaluated_rounds_do_not_change_results(large_batches, make_setup, simulation_of, simulate, changes):
    """Diverged and converged jobs leave in the same round and with the same model as without batches."""
    setup = replace(make_setup("lasso", "feddualavg", **{"rounds": 40, **changes}), record_path=True)
    rates = [0.0545, GOOD[0], 0.0534, GOOD[3], 0.0585, 0.2]
    separate, batched = (simulate(setup, rates, rounds=90, seconds=seconds) for seconds in (0.0, math.inf))
    for one, other in zip(separate, batched, strict=True):
        assert_same_bits(one, other)
        np.testing.assert_equal(one.path, other.path)
        assert one.ended
    assert len({job.round for job in separate}) > 2
    if setup.hparams.until_converged:
        assert any(job.diverged is None and job.round < 90 for job in separate)
    simulation, calls = simulation_of(setup, rates), 0
    while simulation.advance(math.inf):
        calls += 1
    assert calls < max(job.round for job in separate) / 2


def test_a_state_that_is_not_finite_ends_a_job_after_earlier_rounds(large_batches, make_setup, simulate, monkeypatch):
    """One job diverges within a batch of rounds, and the state of another is not finite after the last one."""
    masks = []

    def finite(state):
        mask = np.ones(len(state["z"]), dtype=bool)
        if len(masks) % 40 == 26:
            mask[-2] = False  # of three jobs or, after the first has left, of two
        masks.append(mask)
        return mask

    monkeypatch.setattr(engine, "_finite_jobs", finite)
    setup, rates = make_setup("lasso", "feddualavg", rounds=40), [0.0534, GOOD[0], GOOD[1]]
    separate = simulate(setup, rates)
    assert [job.diverged for job in separate] == [25, 27, None]
    for one, other in zip(separate, simulate(setup, rates, seconds=math.inf), strict=True):
        assert_same_bits(one, other)


def test_client_models_belong_to_the_jobs_that_reach_the_last_round(large_batches, make_setup, simulate):
    setup = replace(make_setup("lasso", "feddualavg", rounds=26), record_clients=True)
    exploded, tame = simulate(setup, [0.0534, GOOD[0]], seconds=math.inf)
    assert exploded.diverged == 25
    assert exploded.clients is None
    assert tame.clients is not None


def test_centralized_draws_its_batches_from_all_rows(make_setup, simulate):
    """Batches are drawn from the pooled rows in every round, also after a resume."""
    setup = make_setup("lasso", "centralized", options={"batch_size": 32}, batch_size=2, rounds=4)
    (whole,) = simulate(setup, GOOD[:1])
    assert whole.history["prox_calls"] == [0, 3, 6, 9, 12]  # 90 rows
    assert whole.history["gradients"] == [0, 90, 180, 270, 360]
    (half,) = (copy.deepcopy(job) for job in simulate(setup, GOOD[:1], rounds=2))
    (again,) = simulate(setup, GOOD[:1], [half])
    assert_same_bits(again, whole)


RESUMABLE = [name for name, kind in all_algorithms().items() if not kind.one_shot]


def with_equal_clients(problem):
    """Return the problem with the rows of all clients at every client, and own noise in the labels."""
    x, y, clients = problem.data.x, problem.data.y, 3
    labels = np.tile(y, clients) + 0.1 * np.random.default_rng(0).standard_normal(clients * len(y))
    data = ClientData(np.tile(x, (clients, 1)), labels, len(y) * np.arange(clients + 1))
    return replace(problem, training=data)


@pytest.mark.parametrize("algo", RESUMABLE)
def test_continuing_from_a_snapshot_changes_nothing(large_batches, make_setup, simulate, psi_for, algo):
    """Client memory is restored, and batches of evaluated rounds do not matter."""
    setup = make_setup("lasso", algo, psi_for(algo).name, rounds=5)
    if algo == "csl":  # converges only if the rows of the clients are similar
        setup = replace(setup, problem=with_equal_clients(setup.problem))
    whole = simulate(setup, GOOD[:2])
    halves = [copy.deepcopy(job) for job in simulate(setup, GOOD[:2], rounds=3)]
    assert halves[0].round == 3
    for job, right in zip(simulate(setup, GOOD[:2], halves, seconds=math.inf), whole, strict=True):
        assert_same_bits(job, right)


def test_divergence_is_recorded_with_its_round_and_the_last_finite_model(make_setup, simulate):
    setup = make_setup("lasso", "feddualavg", rounds=30)
    (job,) = simulate(setup, [0.3])
    assert job.diverged is not None
    assert 1 < job.diverged <= 30
    assert job.round == job.diverged - 1 == job.history["round"][-1]
    assert np.isfinite(job.model).all()


def test_remaining_jobs_keep_their_counters_and_limits(make_setup):
    """The first of two jobs, with dropped messages and another start, leaves the stack."""
    setup = make_setup("lasso", "feddualavg", rounds=3)
    start = np.zeros((2, setup.problem.layout.size))
    start[0] = 3.0
    jobs = [Job(), Job()]
    simulation = Simulation(setup, jobs, from_rates(setup, [1e300, GOOD[0]]), start=start)
    while simulation.advance():
        if simulation.running:
            assert simulation.limits["objective"].tolist() == [EXPLOSION * jobs[1].history["objective"][0]]
    assert [job.diverged for job in jobs] == [1, None]
    assert jobs[1].history["clients_dropped"] == [0, 0, 0, 0]


@pytest.mark.parametrize(("algo", "psi"), [("fedmid", "l2_ball"), ("centralized", "l1")])
def test_divergence_is_detected_under_a_constraint(make_setup, simulate, algo, psi):
    """The weights stay finite in their ball while the bias and the objective diverge."""
    wild, tame = simulate(make_setup("lasso", algo, psi), [1e20, 1e-4])
    assert (wild.diverged, tame.diverged) == (1, None)
    assert wild.history["objective"] == tame.history["objective"][:1]
    assert np.isfinite(tame.history["objective"]).all()


def test_data_that_overflow_the_objective_are_refused(make_setup, simulate):
    setup = make_setup("lasso", "centralized")
    data = setup.problem.data
    huge = replace(setup.problem, training=ClientData(data.x, data.y * 1e200, data.offsets))
    with pytest.raises(UserError, match=r"^task: the initial objective overflows"):
        simulate(replace(setup, problem=huge), [0.01])


DAMAGES = {
    "another array": lambda job: job.state.update(v=np.zeros(3)),
    "a missing array": lambda job: job.state.popitem(),
    "another shape": lambda job: job.state.update({name: values[:-1] for name, values in job.state.items()}),
    "another precision": lambda job: job.state.update({n: v.astype(np.float32) for n, v in job.state.items()}),
    "a round to come": lambda job: setattr(job, "round", 1000),
    "a round before all": lambda job: setattr(job, "round", -3),
    "more counters": lambda job: setattr(job, "counters", np.zeros(99, np.int64)),
    "another metric": lambda job: setattr(job, "history", History.of({**job.history, "weight": [1.0] * 4})),
    "a row too many": lambda job: job.history.rows.append(job.history.rows[-1]),
    "a snapshot that nobody took": lambda job: job.path.update({1: np.zeros(21)}),
    "other rounds": lambda job: job.history.rows.reverse(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_does_not_match_is_detected(make_setup, simulate, damage):
    """Kernels do not check shapes, so an invalid checkpoint could crash the process."""
    setup = make_setup("lasso", "centralized")
    (half,) = simulate(setup, [0.01], rounds=3)
    fresh = Simulation(setup, [Job()], from_rates(setup, [0.01]))
    assert fresh.checkpoint_mismatch(half) is None
    DAMAGES[damage](half)
    assert fresh.checkpoint_mismatch(half)


def test_all_diverge_at_once(make_setup, simulate):
    setup = make_setup("lasso", "fedavg")
    jobs = simulate(setup, [1e300, 1e300])
    assert [job.diverged for job in jobs] == [1, 1]
    assert all(job.ended for job in jobs)


def test_a_row_per_evaluated_round(make_setup, simulate):
    setup = make_setup("lasso", "fedavg", eval_every=3)
    (job,) = simulate(setup, [0.01])
    assert job.history["round"] == [0, 3, 6, 8]  # the last round is always evaluated
    assert {len(values) for values in job.history.values()} == {4}


def test_rarer_evaluation_does_not_change_the_run(make_setup, simulate):
    often, rarely = (make_setup("lasso", "fedmid", eval_every=n) for n in (1, 5))
    np.testing.assert_array_equal(simulate(often, [0.01])[0].model, simulate(rarely, [0.01])[0].model)


def test_the_privacy_loss_is_an_increasing_metric(make_setup, simulate):
    """The privacy loss is recorded at every evaluated round, from 0 on; other transforms have no such column."""
    setup = make_setup("lasso", "fedmid", transform=ClipNoise(clip_norm=0.1, noise_multiplier=5.0), rounds=6)
    (job,) = simulate(setup, [0.001])
    assert job.history["epsilon"] == [total_epsilon(r, 3, 6, 5.0, 1e-5) for r in range(7)]
    assert 0 == job.history["epsilon"][0] < job.history["epsilon"][1] < job.history["epsilon"][6]
    (job,) = simulate(make_setup("lasso", "fedmid", rounds=1), [0.001])
    assert "epsilon" not in job.history


def test_the_privacy_loss_of_a_row_follows_from_the_batches_of_its_client(make_setup, simulate):
    """6 clients with 15 rows: 4 steps with 4 rows on average in every round in which a client takes part."""
    setup = make_setup("lasso", "fedmid", transform=RowClipNoise(noise_multiplier=3.0), rounds=6, eval_every=2)
    (job,) = simulate(setup, [0.001])
    sampler = Sampler(np.full(6, 15), setup.hparams, 0)
    for row, rounds in enumerate((0, 2, 4, 6)):
        most = int(sampler.participation(rounds).rounds.max())
        assert job.history["epsilon"][row] == row_epsilon((RowSums(4 * most, 4 / 15, 3.0),), 1e-5)
    assert 0 == job.history["epsilon"][0] < job.history["epsilon"][1] < job.history["epsilon"][3] < np.inf
    assert job.history["epsilon_run"] == [np.inf] * 4


@pytest.mark.parametrize("algo", ["feddualavg", "scaffold_prox", "scaffnew"])
def test_sampled_rows_and_noise_are_the_same_after_a_checkpoint_and_in_a_stack(make_setup, simulate, algo):
    hparams = {"rounds": 6, "clients_per_round": 6 if algo == "scaffnew" else 3}
    setup = make_setup("lasso", algo, transform=RowClipNoise(clip_norm=3.0), **hparams)
    (whole,), begun = simulate(setup, [0.01]), simulate(setup, [0.01, 0.02], rounds=2)
    assert whole.ended
    assert_same_bits(whole, simulate(setup, [0.01, 0.02], begun)[0])


def test_counters(make_setup, simulate):
    """3 clients per round, 21 numbers of 8 bytes; 15 rows in batches of 4 are 4 local steps and 4 proximal steps.

    Every row's gradient is taken once.
    """
    (job,) = simulate(make_setup("lasso", "feddualavg", rounds=2), [0.01])
    expected = [6, 6, 6 * 21 * 8, 6 * 21 * 8, 2 * (3 * 4 + 1), 6 * 15, 6, 0]
    assert dict(zip(COUNTERS, job.counters.tolist(), strict=True)) == dict(zip(COUNTERS, expected, strict=True))
    assert job.history["prox_calls"] == [0, 13, 26]


def test_optimum_needs_one_round(make_setup, simulate):
    (job,) = simulate(make_setup("lasso", "optimum"), [0.01])
    assert (job.round, job.history["round"]) == (1, [0, 1])
    assert job.history["kkt_residual"][-1] < 1e-6


@pytest.mark.slow
@pytest.mark.machine_code
def test_single_precision_follows_double(make_setup, simulate):
    """float32 states with the same clients and batches have the same curve up to single precision."""
    single, double = (
        simulate(make_setup("lasso", "feddualavg", dtype=dtype), [0.01])[0] for dtype in ("float32", "float64")
    )
    assert single.model.dtype == np.float32
    np.testing.assert_allclose(single.history["objective"], double.history["objective"], rtol=1e-4)
    assert single.counters[2] * 2 == double.counters[2]
