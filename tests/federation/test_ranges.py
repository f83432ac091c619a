"""Preparation by declared ranges between sites: no statistics of rows, or one noisy release that epsilon includes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms.row_accounting import RowSums, row_epsilon
from fco_cli.algorithms.transforms.row_clip_noise import RowClipNoise
from fco_cli.errors import UserError
from fco_cli.federation.coordinator.clients import remote_clients
from fco_cli.federation.coordinator.task import CustomAtSites
from fco_cli.federation.message import Message
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.policy import preset
from fco_cli.simulation.engine import Setup
from tests.federation.conftest import NAMES
from tests.federation.coordinator.test_clients import assert_same, run, task_of

RANGES = {"x0": [-4, 4], "default": [-6, 6]}


@pytest.fixture
def with_missing(tmp_path, hospitals):
    """Return a folder with the hospitals' rows, some of whose values are missing."""
    for name in (*NAMES, "pooled"):
        content = dict(np.load(hospitals("logistic") / f"{name}.npz"))
        content["x"][np.abs(content["x"]) < 0.1] = np.nan
        np.savez(tmp_path / f"{name}.npz", **content)
    return tmp_path


@pytest.fixture
def setups(with_missing, make_sites, psi_for, make_hparams):
    """Return the setups of one run by ranges, simulated and between sites, and its parameters."""

    def make(noise_multiplier=0.0, moments_noise=None, noise=None, policy=None):
        task = task_of(with_missing, "logistic", ranges=RANGES, moments_noise=moments_noise)
        remote = CustomAtSites.of(task, make_sites(with_missing, noise=noise, policy=policy))
        psi, hparams = psi_for("feddualavg"), make_hparams(clients_per_round=3, batch_size=100, rounds=3)
        algorithm = all_algorithms()["feddualavg"]().with_transform(RowClipNoise(noise_multiplier=noise_multiplier))
        made = [Setup(one, one.data(0, "float64").to_problem(psi), hparams, 0, algorithm) for one in (task, remote)]
        made[1] = dataclasses.replace(made[1], clients=remote_clients(made[1].problem.data, hparams, 0))
        return *made, Varying.from_rates(algorithm, psi, np.full(1, 0.05), np.ones(1))

    return make


def kinds(setup):
    return [Message.unpacked(content).kind for content in setup.task.connection.link.sent]


def test_ranges_need_no_statistics_and_give_the_bits_of_the_simulation(setups):
    local, remote, varying = setups()
    assert_same(run(local, varying), run(remote, varying))
    requests = [Message.unpacked(content) for content in remote.task.connection.link.sent]
    assert not next(one for one in requests if one.kind == "prepare").head["summary"]
    assert not {"moments", "count"} & set(kinds(remote))


def test_epsilon_run_is_finite_with_ranges_and_noisy_evaluations(setups):
    noise = EvaluationNoise(norm=1.0, multiplier=40.0, by_row=True)
    _, remote, varying = setups(noise_multiplier=8.0, noise=noise)
    (job,) = run(remote, varying)
    parts = RowSums(3, 1.0, 8.0), RowSums(5, 1.0, 40.0)
    assert job.history["epsilon_run"][-1] == pytest.approx(row_epsilon(parts, 1e-5))


def test_noisy_moments_are_requested_once_and_epsilon_includes_them(setups):
    noise = EvaluationNoise(norm=1.0, multiplier=40.0, by_row=True)
    local, remote, varying = setups(noise_multiplier=8.0, moments_noise=6.0, noise=noise)
    simulated, between_sites = run(local, varying)[0], run(remote, varying)[0]
    assert kinds(remote).count("moments") == 1
    parts = RowSums(3, 1.0, 8.0), RowSums(1, 1.0, 6.0)
    for job in (simulated, between_sites):
        assert job.history["epsilon"][-1] == pytest.approx(row_epsilon(parts, 1e-5))
    everything = row_epsilon((*parts, RowSums(5, 1.0, 40.0)), 1e-5)
    assert between_sites.history["epsilon_run"][-1] == pytest.approx(everything)
    assert simulated.history["epsilon_run"][-1] == math.inf  # its evaluations are exact


def test_noisy_moments_have_the_deviation_of_the_noise(setups, with_missing, make_sites):
    """Means of the scaled features are released with noise of every site; twice, they differ by it."""
    means = []
    for _ in range(40):
        task = task_of(with_missing, "logistic", ranges={"default": [-6, 6]}, moments_noise=0.5)
        data = CustomAtSites.of(task, make_sites(with_missing)).data(0, "float64")
        means.append(data.description.preparation.mean)
    rows, features = data.training.sizes.sum(), 5
    expected = 6 * 0.5 * np.sqrt(1.25 * features) * np.sqrt(3) / rows
    deviation = np.std(means, axis=0)
    assert np.sqrt((deviation**2).mean()) == pytest.approx(expected, rel=0.3)


def test_a_site_refuses_moments_with_too_little_noise(setups):
    policy = dataclasses.replace(preset("demo"), min_noise=5.0)
    with pytest.raises(UserError, match="east: moments with noise multiplier 2 requested; the site's policy allows 5"):
        setups(moments_noise=2.0, policy=policy)


def test_a_text_column_without_declared_categories_is_refused(tmp_path, make_sites):
    for name in NAMES:
        x = np.array([[0.0, 1.0], [1.0, 2.0]] * 8)
        np.savez(
            tmp_path / f"{name}.npz", x=x, y=np.tile([0.0, 1.0], 8), client=np.full(16, name),
            features=np.array(["sex", "age"]), categories=np.array(["f", "m"]), category_of=np.zeros(2, int),
        )  # fmt: skip
    for ranges, is_valid in (({"sex": ["f", "m"], "age": [0, 3]}, True), ({"default": [0, 3]}, False)):
        remote = CustomAtSites.of(task_of(tmp_path, "logistic", ranges=ranges), make_sites(tmp_path))
        if is_valid:
            assert remote.data(0, "float64").features == ("sex=m", "age")
        else:
            with pytest.raises(UserError, match="east: column 'sex': holds texts; declare its"):
                remote.data(0, "float64")
