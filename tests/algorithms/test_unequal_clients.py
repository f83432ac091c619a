"""Tests that methods minimize the reported objective with clients of unequal size."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Logistic
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.clients import Sampler
from fco_cli.simulation.hparams import Hparams

pytestmark = [pytest.mark.ci, pytest.mark.machine_code]

SIZES = (303, 294, 123, 200)  # patients of four hospitals, as in the UCI heart disease data
FEATURES, ROUNDS, RATE = 13, 2000, 1e-3


def hospitals() -> ClientData:
    """Return standardized features with means and effects that differ between hospitals."""
    random = np.random.default_rng(7)
    x, y = [], []
    for size in SIZES:
        rows = random.standard_normal((size, FEATURES)) + 0.7 * random.standard_normal(FEATURES)
        effects = np.append(random.standard_normal(FEATURES - 5), np.zeros(5)) + 0.3 * random.standard_normal(FEATURES)
        x.append(rows)
        y.append(random.random(size) < 1 / (1 + np.exp(-rows @ effects - random.standard_normal())))
    pooled = np.concatenate(x)
    x = (pooled - pooled.mean(axis=0)) / pooled.std(axis=0)
    return ClientData(x, np.concatenate(y).astype(float), np.append(0, np.cumsum(SIZES)))


def distances(name, weighting, normalize, make_algorithm) -> dict[str, float]:
    """Return the distance (maximum norm) of a method's limit from the solution for every weighting."""
    data = TaskData(hospitals(), Linear(FEATURES), Logistic())
    problem = data.to_problem(L1(strength=0.05), weighting=weighting)
    algorithm = make_algorithm(name, problem, RATE)
    hparams = Hparams(RATE, 1.0, ROUNDS, 4, 10, 1, weighting=weighting, normalize_steps=normalize)
    sampler, state = Sampler(problem.data.sizes, hparams, 0), algorithm.initial_state(np.zeros((1, FEATURES + 1)))
    for r in range(ROUNDS):
        state = algorithm.round(state, sampler.cohort(r)).state
    found = {}
    for other in ("uniform", "examples"):
        pooled = data.to_problem(L1(strength=0.05), weighting=other)
        solver = make_algorithm("optimum", pooled)
        optimum = solver.output(solver.round(solver.initial_state(np.zeros((1, FEATURES + 1)))).state)
        found[other] = float(np.abs(algorithm.output(state) - optimum).max())
    return found


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("name", ["feddualavg", pytest.param("fedmid_osp", marks=pytest.mark.slow)])
def test_the_reported_objective_is_minimized(name, weighting, make_algorithm):
    found = distances(name, weighting, normalize=True, make_algorithm=make_algorithm)
    other = "examples" if weighting == "uniform" else "uniform"
    assert found[weighting] < 1e-2
    assert found[other] > 3e-2


def test_the_mean_without_normalization_solves_a_different_problem(make_algorithm):
    """Its weights are p_m K_m, with uniform weighting approximately those by examples."""
    found = distances("feddualavg", "uniform", normalize=False, make_algorithm=make_algorithm)
    assert found["examples"] < 1e-2 < found["uniform"]
