"""Tests of the presets fed_ht and fediter_ht against plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from fco_cli.algorithms import Varying
from fco_cli.config import Run, register

SIZES, RATE, KEPT = (6, 6, 6), 0.05, 2


@pytest.fixture(scope="module")
def preset():
    """Return the run for `algo=name`."""
    register()

    def make(name: str, *overrides: str) -> Run:
        with initialize_config_module("fco_cli.conf", version_base="1.3"):
            return Run.of(compose("config", overrides=[f"algo={name}", f"regularizer.nonzeros={KEPT}", *overrides]))

    return make


def largest(w):
    """Return w with only its KEPT largest weights, the first of equal ones, and the bias."""
    order = np.argsort(-np.abs(w[:-1]), kind="stable")[:KEPT]
    kept = np.append(np.zeros(len(w) - 1), w[-1])
    kept[order] = w[order]
    return kept


def gradient(data, m, w, rows):
    x, y = data.client(m).x[rows], data.client(m).y[rows]
    slopes = 2 * (x @ w[:-1] + w[-1] - y) / len(y)
    return np.append(x.T @ slopes, slopes.sum())


@pytest.mark.parametrize("name", ["fed_ht", "fediter_ht"])
def test_against_a_loop(name, preset, make_problem, make_hparams, cohorts_of, drive):
    """The server keeps the largest weights of the mean; in fediter_ht the clients do so after every step."""
    run = preset(name)
    problem = make_problem(run.regularizer, sizes=SIZES, features=5)
    varying = Varying.from_rates(run.algo, run.regularizer, np.array([RATE]), np.array([run.hparams.server_lr]))
    cohorts = cohorts_of(problem, make_hparams(clients_per_round=2, batch_size=4, local_epochs=2), 5)
    models = np.array(drive(run.algo.bind(problem, varying), cohorts)[0])[:, 0]

    w = np.zeros(6)
    for cohort, model in zip(cohorts, models, strict=True):
        ends = []
        for i, m in enumerate(cohort.clients):
            v = w
            for low, high in pairwise(cohort.edges[cohort.first[i] : cohort.first[i + 1] + 1]):
                v = v - RATE * gradient(problem.data, m, v, cohort.order[low:high])
                v = largest(v) if name == "fediter_ht" else v
            ends.append(v)
        w = largest(np.mean(ends, axis=0))
        np.testing.assert_allclose(model, w, rtol=1e-12, atol=1e-14)
    assert ((models[:, :-1] != 0).sum(axis=1) == KEPT).all()
    assert (models[:, -1] != 0).all()  # the bias is not thresholded


def test_a_preset_is_the_algorithm_with_the_ball(preset):
    """The run ID is that of the equivalent settings."""
    named = [preset("fed_ht"), preset("fedmid_osp", "regularizer=l0_ball", "hparams.server_lr=1")]
    assert len({run.run_id for run in named}) == 1
    assert preset("fediter_ht").algo.name == "fedmid"
