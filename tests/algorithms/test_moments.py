"""Tests of the one-release method: exact moments, their sensitivity and noise, and the server's solution."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from fco_cli.algorithms.arrays import Symmetric, by_job
from fco_cli.algorithms.numpy_backend import numpy_clients
from fco_cli.algorithms.transforms.clip_noise import dp_accounting
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.errors import UserError
from fco_cli.problem.curvature import unpack
from fco_cli.problem.data import SparseRows
from fco_cli.problem.models.linear import SparseLinear
from fco_cli.simulation.clients import Sampler


@pytest.fixture
def moments_of(make_problem, make_algorithm, full_cohort):
    """Return the quadratic and linear moments of every client: lists of [P, P] and [P]."""

    def send(problem=None, loss="squared", backend="numba", transform=None):
        problem = problem or make_problem(loss=loss)
        algorithm = make_algorithm("moments", problem, transform=transform)
        algorithm = numpy_clients(algorithm) if backend == "numpy" else algorithm
        messages = algorithm.round({"w": np.zeros((1, 7))}, full_cohort(problem)).messages
        arrays = [by_job(algorithm.sent, message) for message in messages]
        return [whole(each["quadratic"])[0] for each in arrays], [each["linear"][0] for each in arrays]

    return send


def whole(array):
    """Return the matrices [J, P, P] of a packed array [J, slots, P]."""
    return unpack(Symmetric("quadratic").triangles(array))


def contributions(problem, m, clip_norm=np.inf):
    """Return the rows u = (x, 1, slope at score 0) of a client, clipped."""
    own = problem.data.client(m)
    slopes = -2 * own.y if problem.loss.name == "squared" else 0.5 - own.y
    u = np.column_stack([own.x, np.ones(len(own.y)), slopes])
    return u * np.minimum(1, clip_norm / np.linalg.norm(u, axis=1))[:, None]


@pytest.mark.parametrize(
    "backend", ["numba", "numpy", pytest.param("machine", marks=[pytest.mark.ci, pytest.mark.machine_code])]
)
@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("clip_norm", [np.inf, 2.0])
def test_clients_send_the_mean_moments_of_clipped_rows(loss, clip_norm, backend, moments_of, make_problem):
    transform = None if clip_norm == np.inf else RowClipNoise(clip_norm=clip_norm, noise_multiplier=0.0)
    quadratic, linear = moments_of(loss=loss, backend=backend, transform=transform)
    for m in range(3):
        u = contributions(make_problem(loss=loss), m, clip_norm)
        expected = u.T @ u / len(u)
        np.testing.assert_allclose(quadratic[m], expected[:-1, :-1], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(linear[m], expected[-1, :-1], rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(quadratic[m], quadratic[m].T)


@pytest.mark.parametrize("psi", ["none", "l1", "l2_squared", "l1_ball"])
def test_for_the_squared_loss_one_round_is_the_optimum(psi, make_problem, regularizer, make_algorithm, full_cohort):
    problem = make_problem(regularizer(psi), sizes=(12, 9, 15))
    algorithm = make_algorithm("moments", problem, [1.0, 1.0])
    made = algorithm.round({"w": np.zeros((2, 7))}, full_cohort(problem))
    w = algorithm.output(made.state)
    residual = problem.kkt_residual(w, problem.risk(w).gradient, np.repeat(problem.regularizer.numbers, 2))
    assert (residual < 1e-10).all()
    np.testing.assert_array_equal(w[0], w[1])


def test_for_the_logistic_loss_the_model_minimizes_the_taylor_polynomial(make_problem, make_algorithm, full_cohort):
    problem = make_problem(loss="logistic", sizes=(30, 20, 40))
    algorithm = make_algorithm("moments", problem)
    w = algorithm.output(algorithm.round({"w": np.zeros((1, 7))}, full_cohort(problem)).state)[0]
    gradient = np.zeros(7)
    for m, weight in enumerate(problem.weights):
        own = problem.data.client(m)
        a = np.column_stack([own.x, np.ones(len(own.y))])
        gradient += weight * a.T @ (0.5 - own.y + a @ w / 4) / len(own.y)
    assert np.abs(gradient).max() < 1e-10
    assert problem.risk(w[None]).value < problem.risk(np.zeros((1, 7))).value


def correlated(make_problem, regularizer, shift=0.0):
    """Return a problem with two columns of correlation 1 - 1e-8, all centered at `shift`."""
    problem = make_problem(regularizer("l1", strength=0.05), sizes=(40, 60, 50))
    x, random = problem.data.x, np.random.default_rng(3)
    x[:, 1] = x[:, 0] + np.sqrt(2e-8) * random.standard_normal(len(x))
    x -= x.mean(axis=0) - shift
    problem.data.y[:] = (x - shift) @ np.array([1.0, 0.0, -0.5, 0.3, 0.0, 0.2]) + 0.1 * random.standard_normal(len(x))
    return problem


@pytest.fixture
def solved(make_algorithm, full_cohort):
    def solve(problem):
        algorithm = make_algorithm("moments", problem)
        return algorithm.output(algorithm.round({"w": np.zeros((1, 7))}, full_cohort(problem)).state)

    return solve


def test_correlations_near_1_give_the_certified_optimum(make_problem, regularizer, make_algorithm, solved):
    problem = correlated(make_problem, regularizer)
    w, optimum = solved(problem), make_algorithm("optimum", problem)
    certified = optimum.output(optimum.round(optimum.initial_state(np.zeros((1, 7)))).state)
    numbers = problem.regularizer.numbers
    objectives = [problem.risk(v).value + problem.psi(v, numbers) for v in (w, certified)]
    np.testing.assert_allclose(*objectives, rtol=1e-12)
    assert problem.kkt_residual(w, problem.risk(w).gradient, numbers)[0] < 1e-10
    sums = (v[:, 0] + v[:, 1] for v in (w, certified))  # the data hardly determine the difference
    np.testing.assert_allclose(*sums, rtol=0, atol=1e-8)
    np.testing.assert_allclose(w[:, 2:], certified[:, 2:], rtol=0, atol=1e-8)


def test_columns_far_from_their_center_are_warned_of(make_problem, regularizer, solved, caplog):
    """A shift does not change the problem; sums of rows shifted by 1e4 keep 8 of 16 digits of the variances."""
    with caplog.at_level(logging.INFO):
        near = solved(correlated(make_problem, regularizer))
    assert re.search(r"condition number [1-9]\.\de\+0[89] ", caplog.text)
    assert "center the columns" not in caplog.text
    far = solved(correlated(make_problem, regularizer, shift=1e4))
    assert "center the columns (task.standardize=true)" in caplog.text
    assert np.abs(near - far)[0, 2:-1].max() < 1e-2


def distinct(quadratic, linear):
    return np.concatenate([quadratic[np.triu_indices(7)], linear])


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_no_value_of_a_row_changes_the_sums_by_more_than_their_sensitivity(loss, moments_of, make_problem):
    """By brute force; the noise cancels in differences."""
    clip_norm, changes = 1.5, []
    transform = RowClipNoise(clip_norm=clip_norm, noise_multiplier=0.3)
    before = distinct(*(part[0] for part in moments_of(loss=loss, transform=transform)))
    for row in range(7):
        for factor in (1.0, -1.0, 30.0, -1e3, 1e200, 0.0):
            for column in range(7):
                problem = make_problem(loss=loss)
                problem.data.x[row] = 0.0
                if column < 6:
                    problem.data.x[row, column] = factor
                problem.data.y[row] = 1.0 - problem.data.y[row]
                after = moments_of(problem, transform=transform)
                assert np.isfinite(after[0]).all()
                changes.append(7 * np.linalg.norm(distinct(*(part[0] for part in after)) - before))
    limit = np.sqrt(2) * clip_norm**2
    assert 0.6 * limit < max(changes) <= limit * (1 + 1e-9)


def test_every_distinct_entry_has_the_noise_of_the_accountant(make_problem, make_algorithm, full_cohort, make_hparams):
    """One release, exact by the analytic Gaussian mechanism: deviation / sensitivity = noise_multiplier / sqrt(2)."""
    problem = make_problem(sizes=(10,))
    problem.data.x[:], problem.data.y[:] = 0, 0
    algorithm = make_algorithm("moments", problem, transform=RowClipNoise(clip_norm=2.0, noise_multiplier=3.0))
    draws = []
    for seed in range(300):
        cohort = replace(full_cohort(problem), seed=seed)
        sent = by_job(algorithm.sent, algorithm.round({"w": np.zeros((1, 7))}, cohort).messages[0])
        draws.append(distinct(whole(sent["quadratic"])[0], sent["linear"][0]) * 10)
    draws = np.array(draws)
    np.testing.assert_allclose(draws.std(axis=0), 3 * 2.0**2, rtol=0.25)
    correlations = np.corrcoef(draws.T) - np.eye(35)
    assert np.abs(correlations).max() < 0.3
    participation = Sampler(np.array([10]), make_hparams(clients_per_round=1), 0).participation(1)
    spent = algorithm.privacy_spent(1, 1, np.zeros(1), None, participation)["epsilon"]
    assert spent[0] == pytest.approx(dp_accounting().get_epsilon_gaussian(3 / np.sqrt(2), 1e-5), rel=1e-9)


def test_noise_that_makes_the_quadratic_indefinite_gives_a_bounded_model(
    make_problem, make_algorithm, full_cohort, regularizer
):
    problem = make_problem(regularizer("none"))
    transform = RowClipNoise(clip_norm=3.0, noise_multiplier=20.0)
    algorithm = make_algorithm("moments", problem, transform=transform)
    made = algorithm.round({"w": np.zeros((1, 7))}, full_cohort(problem))
    mean = np.mean([whole(by_job(algorithm.sent, message)["quadratic"])[0] for message in made.messages], axis=0)
    assert np.linalg.eigvalsh(mean)[0] < 0
    assert np.linalg.norm(algorithm.output(made.state)) < 10


def test_an_indefinite_sum_without_noise_ends_its_job_and_no_other(make_problem, make_algorithm, full_cohort, caplog):
    problem = make_problem()
    algorithm = make_algorithm("moments", problem, [1.0, 1.0])
    start = {"w": np.zeros((2, 7))}
    made = algorithm.round(start, full_cohort(problem))
    messages = made.messages.copy()
    by_job(algorithm.sent, messages[1])["quadratic"][0] *= -100
    after = algorithm.finish_round(start, full_cohort(problem), messages, None).state["w"]
    assert np.isnan(after[0]).all()
    np.testing.assert_array_equal(after[1], made.state["w"][1])
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert line.startswith("algo: moments: the sum of the clients' second moments has the eigenvalue -")


def test_a_job_without_finite_messages_does_not_affect_others(make_problem, make_algorithm, full_cohort):
    problem = make_problem()
    algorithm = make_algorithm("moments", problem, [1.0, 1.0])
    messages = algorithm.round({"w": np.zeros((2, 7))}, full_cohort(problem)).messages.copy()
    before = algorithm.finish_round({"w": np.zeros((2, 7))}, full_cohort(problem), messages, None).state["w"]
    messages[:, :, 0] = np.nan
    after = algorithm.finish_round({"w": np.zeros((2, 7))}, full_cohort(problem), messages, None).state["w"]
    assert np.isnan(after[0]).all()
    np.testing.assert_array_equal(after[1], before[1])


def test_other_losses_and_sparse_rows_are_refused(make_problem, make_algorithm):
    with pytest.raises(UserError, match=r"^task\.loss: got 'huber', must be squared or logistic for algo=moments"):
        make_algorithm("moments", make_problem(loss="huber"))
    problem = make_problem()
    x = SparseRows(problem.data.x.ravel(), np.tile(np.arange(6), 20), np.arange(21) * 6, 6)
    sparse = replace(problem, training=replace(problem.data, x=x), model=SparseLinear(6))
    with pytest.raises(UserError, match=r"^algo: got 'moments', must be another"):
        make_algorithm("moments", sparse)


def test_a_run_takes_one_round_and_ignores_rates(here, tmp_path):
    words = ("task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "algo=moments")
    out = here(*words, "hparams.rounds=50", f"output_dir={tmp_path}").out
    again = here(*words, "hparams.rounds=9", "hparams.client_lr=0.5", f"output_dir={tmp_path}").out
    assert "It minimizes the objective" in out
    (path,) = tmp_path.glob("lasso/moments/*/result.json")
    assert json.loads(path.read_text())["convergence"]["converged"], again


def test_a_biased_model_has_no_verdict(here, tmp_path):
    words = ("task=lasso", "task.dimension=12", "task.ones=4", "task.clients=6", "task.samples=15", "algo=moments")
    here(*words, "transform=row_clip_noise", f"output_dir={tmp_path}")
    (path,) = tmp_path.glob("lasso/moments/*/result.json")
    assert json.loads(path.read_text())["convergence"] is None
