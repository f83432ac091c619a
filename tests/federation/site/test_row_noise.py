"""Sites that hide single rows: secret batches and noise, noisy evaluations, and the privacy loss of a whole run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import RemoteClients, remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.schema import Noise
from fco_cli.federation.site.row_noise import noisy_row_sums
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.risk import DataRisk
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.engine import Setup
from fco_cli.simulation.evaluate import evaluate_test
from tests.federation.conftest import NAMES
from tests.federation.coordinator.test_clients import assert_same, run, task_of


@pytest.fixture
def setups(hospitals, make_sites, psi_for, make_hparams, signed):
    """Return the setups of one run, simulated and between sites, and its parameters."""

    def make(algo="feddualavg", noise=None, jobs=2, batch_size=4, masked=None, changes=None, **numbers):
        folder, psi, masks = hospitals("logistic"), psi_for(algo), {}
        if masked is not None:  # the sites that every sum needs
            masks = {"mask_bits": 40, "min_sites": masked, "all_credentials": {name: signed(name) for name in NAMES}}
        hparams = make_hparams(
            clients_per_round=3, batch_size=batch_size, rounds=4, fraction_bits=40 if masked else None, **changes or {}
        )
        task = dataclasses.replace(task_of(folder, "logistic", test="rows"), standardize=False, fill="refuse")
        remote = CustomAtSites.of(task, make_sites(folder, noise=noise, **masks))
        algorithm = all_algorithms()[algo]().with_transform(RowClipNoise(**numbers))
        made = []
        for one in (task, remote):
            problem = one.data(0, "float64").to_problem(psi, weighting=hparams.weighting)
            made.append(Setup(one, problem, hparams, 0, algorithm))
        made[1] = dataclasses.replace(made[1], clients=remote_clients(made[1].problem.data, hparams, 0))
        return *made, Varying.from_rates(algorithm, psi, np.full(jobs, 0.05), np.ones(jobs))

    return make


@pytest.mark.parametrize("algo", ["feddualavg", "scaffold_prox", "scaffnew", "fista"])
def test_without_noise_sites_give_the_bits_of_the_simulation(setups, algo):
    local, remote, varying = setups(algo, clip_norm=0.4, noise_multiplier=0.0)
    simulated, between_sites = run(local, varying), run(remote, varying)
    assert_same(simulated, between_sites)


@pytest.fixture
def messages_of(setups):
    """Return the messages [S, J, P] of the first round, requested twice in two sessions."""

    def send(jobs=2, **numbers):
        rounds = []
        for _ in range(2):
            local, remote, varying = setups("fedavg", jobs=jobs, **numbers)
            problem = remote.problem
            algorithm = remote.algorithm.bind(problem, varying)
            clients = RemoteClients(problem.data, problem, algorithm, jobs, remote.hparams, 0)
            cohort = Sampler(problem.data.sizes, remote.hparams, 0, sample_rows=True).cohort(0)
            state = algorithm.initial_state(problem.initial_models(varying.psi))
            own = local.algorithm.bind(local.problem, varying).round(state, cohort).messages[:, 0]
            rounds.append(clients.round(algorithm, state, cohort).messages[:, 0])
        return problem.data.sizes[cohort.clients], own, *rounds

    return send


def test_noise_does_not_depend_on_the_seed_and_differs_between_jobs(messages_of):
    """Equal noise in two jobs would cancel in the difference of their messages."""
    sizes, simulated, first, second = messages_of(batch_size=100, noise_multiplier=5.0, jobs=40)
    np.testing.assert_array_equal(simulated[:, 0], simulated[:, 1])
    for one, other in ((simulated, first), (first, second), (first[:, :20], first[:, 20:])):
        assert np.abs(one - other).min() > 0
    for message, rows in zip((first - second) / np.sqrt(2), sizes, strict=True):  # one step on all rows
        assert message.std() == pytest.approx(0.05 * 5 / rows, rel=5 / np.sqrt(2 * message.size))


def test_batches_do_not_depend_on_the_seed(messages_of):
    """With negligible noise, other batches are the only difference between two requests."""
    _, _, first, second = messages_of(noise_multiplier=1e-6, jobs=1)
    assert np.abs(first - second).max() > 1e-3


def test_more_noise_than_the_policy_allows_is_refused(hospitals, make_sites, setups, monkeypatch):
    _, remote, varying = setups(batch_size=3, jobs=10)
    for site in remote.task.connection.link.sites.values():
        policy = dataclasses.replace(site.policy, max_numbers=150)
        monkeypatch.setattr(site.data, "policy", policy)
        monkeypatch.setattr(site.disclosure, "policy", policy)
    with pytest.raises(
        UserError, match=r"240 numbers requested; the site's policy allows 150 \(site.yaml: max_numbers\)"
    ):
        run(remote, varying)


# Noise that sites share in masked sums.


@pytest.mark.parametrize("algo", ["feddualavg", "fista", "moments"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_masked_sums_without_noise_have_the_bits_of_the_simulation(setups, algo, weighting):
    changes = {"weighting": weighting}
    local, remote, varying = setups(
        algo, masked=3, batch_size=100, changes=changes, clip_norm=0.4, noise_multiplier=0.0, noise_shares=2
    )
    simulated, between_sites = run(local, varying), run(remote, varying)
    for one, other in zip(simulated, between_sites, strict=True):
        np.testing.assert_array_equal(one.model, other.model)


@pytest.fixture
def masked_means(setups):
    """Return the models [J, P] after one masked round, between sites and simulated, and the sites' rows."""

    def send(jobs, weighting, **numbers):
        local, remote, varying = setups(
            "fedavg", jobs=jobs, masked=3, batch_size=100, changes={"weighting": weighting}, **numbers
        )
        problem = remote.problem
        algorithm, simulated = (one.algorithm.bind(one.problem, varying) for one in (remote, local))
        clients = RemoteClients(problem.data, problem, algorithm, jobs, remote.hparams, 0)
        cohort = Sampler(problem.data.sizes, remote.hparams, 0, sample_rows=True).cohort(0)
        state = algorithm.initial_state(problem.initial_models(varying.psi))
        exact = simulated.round(state, dataclasses.replace(cohort, seed=1)).state["w"]
        made = clients.round(algorithm, state, cohort).state["w"]
        return made, exact, problem.data.sizes

    return send


@pytest.mark.ci
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_two_of_three_sites_have_the_whole_noise(masked_means, weighting):
    """The sum of all three has sqrt(3 / 2) times the noise."""
    made, _, sizes = masked_means(2000, weighting, clip_norm=1.0, noise_multiplier=5.0, noise_shares=2)
    weights = sizes / sizes.sum() if weighting == "examples" else np.full(3, 1 / 3)
    expected = 0.05 * 5.0 * (weights / sizes).max() * np.sqrt(3 / 2)
    deviation = (made - made.mean(axis=0)).std()
    assert deviation == pytest.approx(expected, rel=5 / np.sqrt(2 * made.size))


def test_the_simulation_has_the_noise_of_the_sites(masked_means):
    """The noise of a simulation is equal in all jobs, so that seeds are repeated instead."""
    made, exact, sizes = masked_means(1, "examples", noise_multiplier=1e3, noise_shares=3)
    expected = 0.05 * 1e3 / sizes.sum()
    for mean in (made, exact):
        assert 0.2 * expected < mean.std() < 3 * expected


def test_a_site_refuses_shares_that_colluding_sites_could_remove(setups):
    _, remote, varying = setups(masked=3, batch_size=100, jobs=1, noise_shares=3)
    for site in remote.task.connection.link.sites.values():
        site.disclosure.policy = dataclasses.replace(site.policy, colluding_sites=1)
    allowed = r"allows 2 in a sum of 3 sites \(site.yaml: colluding_sites\)"
    with pytest.raises(UserError, match=f"east: noise shared by 3 sites requested; the site's policy {allowed}"):
        run(remote, varying)


def test_a_site_refuses_shares_without_masks(setups):
    _, remote, varying = setups(batch_size=100, jobs=1, noise_shares=2)
    with pytest.raises(UserError, match="noise shared by 2 sites requested; the site's policy allows 1 in a sum of 1"):
        run(remote, varying)


@pytest.mark.parametrize(
    ("algo", "batch_size", "reason"),
    [("scaffold_prox", 100, "transform.noise_shares"), ("feddualavg", 4, "hparams.batch_size")],
)
def test_a_site_refuses_shares_that_do_not_add_up(setups, algo, batch_size, reason):
    """A site does not rely on the checks of the coordinator."""
    _, remote, varying = setups(algo, masked=3, batch_size=batch_size, jobs=1, noise_shares=2)
    with pytest.raises(UserError, match=f"east: {reason}"):
        run(remote, varying)


def test_the_share_of_an_evaluation_hides_a_row_of_every_site(setups):
    noise = EvaluationNoise(norm=1.0, multiplier=6.0, by_row=True, shares=2)
    changes = {"weighting": "uniform"}
    _, remote, _ = setups(noise=noise, jobs=1, masked=3, batch_size=100, changes=changes, noise_shares=2)
    problem = remote.problem
    w = np.zeros((3000, problem.layout.size)) + 1e-6 * np.arange(3000)[:, None]
    found, sizes = problem.data.risk(problem.weights)(w), problem.data.sizes
    expected = 6.0 * np.sqrt(3 / 2) * (problem.weights / sizes).max()
    assert (found.gradient - found.gradient.mean(axis=0)).std() == pytest.approx(expected, rel=0.05)
    assert (found.value - found.value.mean()).std() == pytest.approx(expected, rel=0.1)
    assert found.accuracy.std() * sizes.sum() == pytest.approx(6.0 * np.sqrt(3 / 2), rel=0.1)


# Evaluations.


NEGLIGIBLE = Noise(most=1e9, deviation=1e-9, rows=10.0, by_row=True)


def evaluate(problem, w, noise=NEGLIGIBLE, gradient=True, weight=0.25):
    return noisy_row_sums(problem.data, problem.model, problem.loss, w, weight, gradient, noise)


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber", "poisson", "softmax"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_without_clipping_and_noise_an_evaluation_is_that_of_the_rows(loss, kind, make_problem):
    problem = make_problem(loss=loss, outputs=3 if loss == "softmax" else 1, sizes=(12,))
    w = np.random.default_rng(1).normal(0, 0.3, (2, problem.layout.size))
    problem.data.x[3] = 0
    if kind == "sparse":
        columns = np.tile(np.arange(6), 12)
        stored = problem.data.x.ravel() != 0
        starts = np.append(0, np.cumsum((problem.data.x != 0).sum(axis=1)))
        x = SparseRows(problem.data.x.ravel()[stored], columns[stored], starts, 6)
        outputs = problem.model.outputs
        problem = dataclasses.replace(
            problem, training=dataclasses.replace(problem.data, x=x), model=SparseLinear(6, outputs)
        )
    risk = DataRisk(problem.data, np.array([0.25]), problem.model, problem.loss)(w)
    noisy = evaluate(problem, w)
    np.testing.assert_allclose(noisy["value"], risk.value, rtol=1e-7)
    np.testing.assert_allclose(noisy["gradient"], risk.gradient, rtol=1e-6, atol=1e-8)
    assert ("hits" in noisy) == problem.loss.classification
    if problem.loss.classification:
        np.testing.assert_allclose(noisy["hits"], risk.accuracy * 12, atol=1e-6)
    assert evaluate(problem, w, gradient=False).keys() == noisy.keys() - {"gradient"}


def as_vector(evaluation, rows, weight):
    """Return an evaluation as the sums before weighting."""
    parts = [values.ravel() * (1 if name == "hits" else rows / weight) for name, values in evaluation.items()]
    return np.concatenate(parts)


@pytest.mark.parametrize("loss", ["squared", "logistic", "poisson"])
def test_no_value_of_a_row_changes_an_evaluation_by_more_than_twice_the_norm(loss, make_problem):
    noise = Noise(most=0.6, deviation=1e-12, rows=10.0, by_row=True)
    w, changes = np.full((1, 7), 0.5), []
    before = as_vector(evaluate(make_problem(loss=loss, sizes=(8,)), w, noise), 8, 0.25)
    for row in range(8):
        for factor in (-1.0, 1e3, -1e3, 1e200, -1e200, 0.0):
            for label in (0.0, 1.0):
                problem = make_problem(loss=loss, sizes=(8,))
                problem.data.x[row], problem.data.y[row] = factor, label
                with np.errstate(all="ignore"):
                    after = as_vector(evaluate(problem, w, noise), 8, 0.25)
                assert np.isfinite(after).all()
                changes.append(np.linalg.norm(after - before))
    assert 0.6 < max(changes) <= 2 * 0.6 + 1e-9


def test_the_noise_of_an_evaluation_has_the_specified_deviation():
    jobs, rows = 3000, 4
    data = ClientData(np.zeros((rows, 2)), np.zeros(rows), np.array([0, rows]))
    w = np.zeros((jobs, 3))
    noisy = noisy_row_sums(
        data, Linear(2), all_losses()["squared"](), w, 0.5, True, Noise(most=1.0, deviation=3.0, rows=9.0, by_row=True)
    )
    for values in noisy.values():
        assert values.std() == pytest.approx(3 * 0.5 / rows, rel=0.06)
        assert abs(values.mean()) < 0.06
    assert abs(np.corrcoef(noisy["value"], noisy["gradient"][:, 0])[0, 1]) < 0.1


def test_epsilon_run_covers_the_rounds_and_the_evaluations_of_a_row(setups):
    noise = EvaluationNoise(norm=1.0, multiplier=40.0, by_row=True)
    _, remote, varying = setups(noise=noise, jobs=1, noise_multiplier=8.0)
    (job,) = run(remote, varying)
    problem = remote.problem
    evaluate_test(remote.task, problem, job.model)
    sizes, spent = problem.data.sizes, []
    for rounds in range(5):
        steps = rounds * -(-sizes // 4)
        answers = RowSums(rounds + 2, 1.0, 40.0)  # round 0, every other round, and the gradient at the start
        each = [(RowSums(int(k), 4 / int(n), 8.0), answers) for k, n in zip(steps, sizes, strict=True)]
        spent.append(max(row_epsilon(parts, 1e-5) for parts in each))
    assert job.history["epsilon_run"] == pytest.approx(spent, rel=1e-9)
    assert all(a < b < math.inf for a, b in zip(job.history["epsilon"], job.history["epsilon_run"], strict=True))
    requests = [Message.unpacked(content) for content in remote.task.connection.link.sent]
    evaluations = [one for one in requests if one.kind == "evaluate"]
    assert all(one.head["fits"][0]["noise"]["by_row"] for one in evaluations)
    assert sum(one.head["part"] == "training" for one in evaluations) <= 4 + 2
    assert {one.kind for one in requests} == {"describe", "prepare", "apply", "stack", "train", "evaluate"}


def test_epsilon_run_is_infinite_if_evaluations_are_exact(setups):
    _, remote, varying = setups(jobs=1, noise_multiplier=8.0)
    (job,) = run(remote, varying)
    assert set(job.history["epsilon_run"]) == {math.inf}
    assert math.isfinite(job.history["epsilon"][-1])
