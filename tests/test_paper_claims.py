"""The paper's claims at the paper's size, seed 0: minutes of work."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.problem.regularizers.nuclear import Nuclear as NuclearNorm
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.smoothness import estimate_smoothness
from fco_cli.tasks.synthetic import Lasso, Nuclear

pytestmark = [pytest.mark.slow, pytest.mark.machine_code]

COMMON = {"strength": 0.5, "radius": 1.0, "clients": 64, "samples": 128}


@pytest.fixture(scope="module")
def lasso():
    task = Lasso(name="lasso", dimension=1024, ones=512, **COMMON)
    return task, task.build(0, "float64").to_problem(L1(strength=0.5))


@pytest.fixture(scope="module")
def mild_lasso():
    task = Lasso(name="lasso", dimension=1024, ones=512, heterogeneity=0.3, **COMMON)
    return task, task.build(0, "float64").to_problem(L1(strength=0.5))


@pytest.fixture(scope="module")
def nuclear():
    task = Nuclear(name="nuclear", dimension=32, rank=16, **COMMON)
    return task, task.build(0, "float64").to_problem(NuclearNorm(strength=0.5))


def simulate(instance, algo: str, client_lr: float, server_lr: float, rounds: int) -> tuple[Job, pd.DataFrame]:
    task, problem = instance
    hparams = Hparams(client_lr, server_lr, rounds, clients_per_round=10, batch_size=10, local_epochs=1)
    algorithm = all_algorithms()[algo]()
    varying = Varying.from_rates(algorithm, problem.regularizer, np.array([client_lr]), np.array([server_lr]))
    job = Job()
    simulation = Simulation(Setup(task, problem, hparams, 0, algorithm), [job], varying)
    while simulation.advance():
        pass
    return job, pd.DataFrame(job.history).set_index("round")


def test_feddualavg_recovers_the_lasso_support(lasso):
    final = simulate(lasso, "feddualavg", 0.001, 1.0, 500)[1].loc[500]
    assert final.f1 >= 0.995
    assert abs(final.density - 0.5) <= 0.01


def test_fedmid_stays_dense(lasso):
    assert simulate(lasso, "fedmid", 0.001, 0.3, 500)[1].loc[500].density >= 0.6


def test_feddualavg_finds_the_rank(nuclear):
    assert simulate(nuclear, "feddualavg", 0.001, 1.0, 100)[1].loc[100]["rank"] == 16


def test_fedmid_does_not_find_the_rank(nuclear):
    assert simulate(nuclear, "fedmid", 0.001, 0.3, 100)[1].loc[100]["rank"] >= 20


def test_the_papers_learning_rate_diverges_on_the_data_of_its_text(lasso):
    job, _ = simulate(lasso, "feddualavg", 0.01, 1.0, 500)
    assert job.diverged is not None
    assert 2 / estimate_smoothness(lasso[1], 0, 10) < 0.01  # which is why


def test_the_papers_learning_rate_is_the_right_one_on_milder_data(mild_lasso):
    _, history = simulate(mild_lasso, "feddualavg", 0.01, 1.0, 500)
    assert history.loc[100].f1 >= 0.995
    assert history.loc[500].f1 >= 0.995
