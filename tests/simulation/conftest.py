from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms import Varying, all_algorithms
from fco_cli.algorithms.transforms import NoTransform, Transform
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.simulation.engine import Job, Setup, Simulation
from fco_cli.tasks.synthetic import Lasso, Nuclear

COMMON = {"strength": 0.5, "radius": 5.0, "clients": 6, "samples": 15}
PSI = {"lasso": "l1", "nuclear": "nuclear"}


@pytest.fixture(scope="session")
def tasks():
    return {
        "lasso": Lasso(name="lasso", dimension=20, ones=5, **COMMON),
        "nuclear": Nuclear(name="nuclear", dimension=5, rank=2, **COMMON),
    }


@pytest.fixture(scope="session")
def make_setup(tasks, regularizer, make_hparams):
    def make(
        task: str,
        algo: str,
        psi: str | None = None,
        options: dict | None = None,
        transform: Transform | None = None,
        **changes,
    ) -> Setup:
        hparams = make_hparams(**{"clients_per_round": 3, "batch_size": 4, "rounds": 8, **changes})
        built = tasks[task].build(0, hparams.dtype)
        problem = built.to_problem(regularizer(psi or PSI[task], strength=0.5), Euclidean(), hparams.weighting)
        algorithm = all_algorithms()[algo](**(options or {})).with_transform(transform or NoTransform())
        return Setup(tasks[task], problem, hparams, 0, algorithm)

    return make


@pytest.fixture(scope="session")
def simulation_of():
    """Return a function that creates a simulation of jobs with given client rates, from the start or from snapshots."""

    def make(setup, rates, jobs=None, folders=None) -> Simulation:
        rates = np.array(rates, dtype=float)
        varying = Varying.from_rates(setup.algorithm, setup.problem.regularizer, rates, np.full(len(rates), 0.7))
        return Simulation(setup, jobs or [Job() for _ in rates], varying, folders)

    return make


@pytest.fixture(scope="session")
def simulate(simulation_of):
    """Return a function that runs such jobs to the end or for some rounds."""

    def run(setup, rates, jobs=None, rounds=None, folders=None, seconds=0.0) -> list[Job]:
        simulation = simulation_of(setup, rates, jobs, folders)
        jobs = list(simulation.running)
        for _ in range(setup.hparams.rounds if rounds is None else rounds):
            if not simulation.advance(seconds):
                break
        simulation.snapshot()
        return jobs

    return run
