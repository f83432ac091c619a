from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms import ALGORITHMS, Jobs
from fco_cli.simulation.engine import Experiment, Job, Simulation
from fco_cli.tasks.lasso import Lasso
from fco_cli.tasks.nuclear import Nuclear

COMMON = {"strength": 0.5, "radius": 5.0, "clients": 6, "samples": 15}


@pytest.fixture(scope="session")
def tasks():
    return {
        "lasso": Lasso(name="lasso", dimension=20, ones=5, **COMMON),
        "nuclear": Nuclear(name="nuclear", dimension=5, rank=2, **COMMON),
    }


@pytest.fixture(scope="session")
def make_experiment(tasks, regularizer, make_settings):
    def make(task: str, algo: str, **changes) -> Experiment:
        settings = make_settings(**{"clients_per_round": 3, "batch_size": 4, "rounds": 8, **changes})
        psi = regularizer({"lasso": "l1", "nuclear": "nuclear"}[task], strength=0.5)
        problem = tasks[task].build(0, settings.dtype, psi, settings.weighting)
        return Experiment(tasks[task], problem, settings, 0, ALGORITHMS[algo])

    return make


@pytest.fixture(scope="session")
def simulate():
    """Run jobs with these client rates to the end, from the start or from snapshots."""

    def run(experiment, rates, jobs=None, rounds=None) -> list[Job]:
        rates = np.array(rates, dtype=float)
        jobs = jobs or [Job() for _ in rates]
        parameters = np.repeat(experiment.problem.regularizer.numbers, len(rates))
        simulation = Simulation(experiment, jobs, Jobs(rates, np.full(len(rates), 0.7), parameters))
        for _ in range(experiment.settings.rounds if rounds is None else rounds):
            if not simulation.advance():
                break
        simulation.snapshot()
        return jobs

    return run
