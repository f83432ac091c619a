"""Evaluations with noise: clipping, standard deviation and the privacy budget of a run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import NoTransform
from fco_cli.algorithms.transforms.clip_noise import ClipNoise, total_epsilon
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import BadMessage, Message, converted
from fco_cli.federation.noise import EvaluationNoise, clip_and_add_noise
from fco_cli.federation.schema import Noise
from fco_cli.federation.settings import Flare
from fco_cli.simulation.engine import Setup
from fco_cli.simulation.evaluate import evaluate_test, judge
from tests.federation.coordinator.test_clients import run, task_of

WITHOUT = Noise(most=0.5, deviation=1e-12, rows=10.0)  # negligible noise, to test the clipping


def response_of(value: float, *gradient: float, hits: float) -> dict[str, np.ndarray]:
    return {"value": np.array([value]), "gradient": np.array([gradient]), "hits": np.array([hits])}


def norm_of(response: dict[str, np.ndarray]) -> float:
    return math.sqrt(
        sum(float(np.sum((values / (10 if name == "hits" else 1)) ** 2)) for name, values in response.items())
    )


def test_a_response_is_clipped_as_one_vector():
    short, long = response_of(0.1, 0.2, -0.1, hits=3), response_of(3.0, 4.0, 0.0, hits=0)
    for name, values in clip_and_add_noise(short, WITHOUT).items():
        np.testing.assert_allclose(values, short[name], atol=1e-9)
    shortened = clip_and_add_noise(long, WITHOUT)
    np.testing.assert_allclose(shortened["gradient"], [[0.4, 0.0]], atol=1e-9)
    assert norm_of(shortened) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_overflowing_values_give_a_finite_clipped_response(value):
    noisy = clip_and_add_noise(response_of(value, 1e300, -1e300, hits=1), WITHOUT)
    assert all(np.isfinite(values).all() for values in noisy.values())
    assert norm_of(noisy) <= 0.5 + 1e-9


def test_the_sum_has_the_noise_that_the_accountant_assumes():
    """In units of the largest norm of a site: the largest share of the weights or of the rows."""
    weights, sizes, jobs = np.array([0.2, 0.3, 0.5]), np.array([10, 70, 20]), 4000
    parameters = EvaluationNoise(norm=2.0, multiplier=3.0).site_parameters(weights, sizes, len(sizes))
    assert parameters["most"] == pytest.approx(2 * 0.7)
    zeros = {"value": np.zeros(jobs), "hits": np.zeros(jobs)}
    responses = [clip_and_add_noise(zeros, converted(parameters, Noise)) for _ in sizes]
    for name, unit in (("value", 1), ("hits", sizes.sum())):
        total = sum(response[name] for response in responses) / unit
        assert total.std() == pytest.approx(3 * parameters["most"], rel=0.1)  # 4,000 numbers: 1 %
        assert abs(total.mean()) < 3 * parameters["most"] * 0.1


@pytest.mark.parametrize(
    "change", [{"most": None}, {"deviation": 0.0}, {"most": math.inf}, {"rows": "10"}, {"more": 1}]
)
def test_invalid_noise_is_refused_by_the_site(change):
    with pytest.raises(BadMessage, match=next(iter(change))):
        converted({"most": 0.5, "deviation": 1.0, "rows": 10.0} | change, Noise)


def test_evaluations_count_as_rounds_with_full_participation():
    from fco_cli.algorithms.transforms import Evaluations

    assert total_epsilon(7, 5, 5, 4.0, 1e-5, Evaluations(3, 4.0)) == pytest.approx(
        total_epsilon(10, 5, 5, 4.0, 1e-5), rel=1e-12
    )
    assert total_epsilon(7, 2, 5, 4.0, 1e-5) < total_epsilon(7, 2, 5, 4.0, 1e-5, Evaluations(1, 40.0))
    assert total_epsilon(7, 2, 5, 4.0, 1e-5, Evaluations(1, 0.0)) == math.inf
    assert total_epsilon(0, 2, 5, 4.0, 1e-5, Evaluations(2, 4.0)) == pytest.approx(
        total_epsilon(2, 5, 5, 4.0, 1e-5), rel=1e-12
    )


@pytest.fixture
def private(hospitals, make_sites, psi_for, make_hparams):
    """Return a run with noise in its rounds and optionally in its evaluations, and the requests to its sites."""

    def make(noise: EvaluationNoise | None):
        folder, psi, algorithm = hospitals("logistic"), psi_for("feddualavg"), all_algorithms()["feddualavg"]()
        hparams, task = (
            make_hparams(clients_per_round=3, rounds=6, eval_every=2),
            task_of(folder, "logistic", test="rows"),
        )
        remote = CustomAtSites.of(
            dataclasses.replace(task, standardize=False, fill="refuse"), make_sites(folder, noise=noise)
        )
        problem = remote.data(0, "float64").to_problem(psi)
        through = algorithm.with_transform(ClipNoise(noise_multiplier=4.0))
        setup = Setup(remote, problem, hparams, 0, through, clients=remote_clients(problem.data, hparams, 0))
        job = run(setup, Varying.from_rates(algorithm, psi, np.array([0.05]), np.ones(1)))[0]
        evaluate_test(remote, problem, job.model)
        return job, problem, [Message.unpacked(content) for content in remote.connection.link.sent]

    return make


def test_epsilon_run_covers_rounds_and_evaluations(private):
    """Rounds 0, 2, 4 and 6 on two parts each, the test rows, and the gradient at the start."""
    job, problem, requests = private(EvaluationNoise(norm=1.0, multiplier=4.0))
    problem.kkt_scale(np.zeros(1, [("radius", float)]).view(np.recarray))
    spent = [total_epsilon(r + 2 * (r // 2 + 1) + 2, 3, 3, 4.0, 1e-5) for r in (0, 2, 4, 6)]
    assert job.history["epsilon_run"] == pytest.approx(spent, rel=1e-9)
    assert job.history["epsilon"] == [total_epsilon(r, 3, 3, 4.0, 1e-5) for r in (0, 2, 4, 6)]
    evaluations = [one for one in requests if one.kind == "evaluate"]
    assert len(evaluations) + 1 == 2 * 4 + 2  # and the gradient, which is requested last
    assert all(one.head["fits"][0]["noise"]["deviation"] > 0 for one in evaluations)
    assert {one.kind for one in requests} == {"describe", "prepare", "apply", "stack", "train", "evaluate"}
    assert "validation_auc" not in job.history


def test_convergence_is_not_tested_with_noise(private):
    """No Hessian is requested if a residual is small by chance."""
    job, problem, _ = private(EvaluationNoise(norm=1.0, multiplier=4.0))
    sent = problem.data.agreement.sites.link.sent
    verdict = judge(problem, problem.regularizer.numbers, math.inf, job.model, job.history, None)
    before = len(sent)
    assert not judge(problem, problem.regularizer.numbers, math.inf, job.model, job.history, None).converged
    assert "convergence cannot be tested with noisy evaluations" in verdict.line
    assert len(sent) == before


def test_epsilon_run_is_infinite_without_evaluation_noise(private):
    job, _, _ = private(None)
    assert set(job.history["epsilon_run"]) == {math.inf}
    assert math.isfinite(job.history["epsilon"][-1])


def test_a_simulation_has_no_epsilon_run(private, make_problem, make_algorithm):
    algorithm = make_algorithm("fedavg", make_problem(), transform=ClipNoise(noise_multiplier=4.0))
    assert set(algorithm.privacy_spent(3, 2, np.zeros(1))) == {"epsilon"}


def test_curvature_is_not_requested(private):
    _, problem, _ = private(EvaluationNoise(norm=1.0, multiplier=4.0))
    with pytest.raises(UserError, match=r"set hparams.client_lr to a number"):
        problem.data.smoothness(0, 4)


def test_rows_that_need_preparation_are_refused(tmp_path, hospitals, make_sites):
    folder = hospitals("logistic")
    for name in ("east", "north", "south"):
        content = dict(np.load(folder / f"{name}.npz"))
        content["x"][0, 0] = np.nan
        np.savez(tmp_path / f"{name}.npz", **content)
    task = dataclasses.replace(task_of(folder, "logistic"), standardize=False, fill="refuse")
    remote = CustomAtSites.of(task, make_sites(tmp_path, noise=EvaluationNoise(norm=1.0, multiplier=4.0)))
    with pytest.raises(UserError, match="east: the site has categorical or missing values"):
        remote.data(0, "float64")


@pytest.mark.parametrize(("key", "task"), [("standardize", {}), ("fill", {"standardize": False})])
def test_a_task_that_needs_summaries_is_refused(hospitals, make_hparams, key, task):
    federation = Flare(sites=["east", "north"], evaluation_noise=2.0)
    with pytest.raises(UserError, match=rf"^task\.{key}.* with federation\.evaluation_noise: summaries of rows"):
        federation.bind_task(task_of(hospitals("logistic"), "logistic", path="", **task), make_hparams(), NoTransform())


@pytest.mark.parametrize(("transform", "by_row"), [(RowClipNoise(), True), (NoTransform(), False)])
def test_noise_hides_rows_if_the_transform_does(hospitals, make_hparams, transform, by_row):
    task = task_of(hospitals("logistic"), "logistic", path="", standardize=False, fill="refuse")
    remote = Flare(sites=["east", "north"], evaluation_noise=2.0).bind_task(task, make_hparams(), transform)
    assert remote.connection.noise == EvaluationNoise(norm=1.0, multiplier=2.0, by_row=by_row)


@pytest.mark.parametrize(
    ("masks", "shares", "allowed"), [(True, 4, "from 1 to 3, the sites that every sum needs"), (False, 2, "1 without")]
)
def test_noise_is_shared_by_at_most_the_sites_of_a_masked_sum(hospitals, make_hparams, masks, shares, allowed):
    federation = Flare(sites=["east", "north", "south"], masks=masks)
    task, hparams = task_of(hospitals("logistic"), "logistic", path=""), make_hparams(clients_per_round=3)
    with pytest.raises(UserError, match=rf"^transform\.noise_shares: got {shares}, must be {allowed}"):
        federation.bind_task(task, dataclasses.replace(hparams, fraction_bits=40), RowClipNoise(noise_shares=shares))


@pytest.mark.parametrize("wrong", [{"evaluation_noise": 0.0}, {"evaluation_noise": 1.0, "evaluation_norm": math.inf}])
def test_invalid_noise_settings(wrong):
    with pytest.raises(UserError, match=r"^federation.evaluation_no"):
        Flare(sites=["east"], **wrong)
