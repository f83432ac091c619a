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
from tests.federation.coordinator.test_clients import assert_same, run, task_of


@pytest.fixture
def setups(hospitals, make_sites, psi_for, make_hparams):
    """Return the setups of one run, simulated and between sites, and its parameters."""

    def make(algo="feddualavg", noise=None, jobs=2, batch_size=4, **numbers):
        folder, psi = hospitals("logistic"), psi_for(algo)
        hparams = make_hparams(clients_per_round=3, batch_size=batch_size, rounds=4)
        task = dataclasses.replace(task_of(folder, "logistic", test="rows"), standardize=False, fill="refuse")
        remote = CustomAtSites.of(task, make_sites(folder, noise=noise))
        algorithm = all_algorithms()[algo]().with_transform(RowClipNoise(**numbers))
        made = []
        for one in (task, remote):
            problem = one.data(0, "float64").to_problem(psi)
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
    assert all(one.head["noise"]["by_row"] for one in evaluations)
    assert sum(one.head["part"] == "training" for one in evaluations) <= 4 + 2
    assert {one.kind for one in requests} == {"describe", "prepare", "apply", "stack", "train", "evaluate"}


def test_epsilon_run_is_infinite_if_evaluations_are_exact(setups):
    _, remote, varying = setups(jobs=1, noise_multiplier=8.0)
    (job,) = run(remote, varying)
    assert set(job.history["epsilon_run"]) == {math.inf}
    assert math.isfinite(job.history["epsilon"][-1])
