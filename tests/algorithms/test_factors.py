"""Tests of penalty factors such as {age: 0}: every algorithm supports them or rejects them in one line.

The clients' columns are orthogonal to each other and to the constant, so that the problem separates by coordinates: a
coordinate with factor f changes as in a run with f times the strengths, or has the same limit.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.linalg import hadamard

from fco_cli.algorithms import all_algorithms
from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData
from fco_cli.problem.losses import Squared
from fco_cli.problem.mirror_maps import Euclidean
from fco_cli.problem.models.linear import Linear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import all_regularizers

FACTORS = (0.0, 0.5, 1.0, 3.0)
WEIGHTED = [name for name, kind in all_regularizers().items() if "factors" in (field.name for field in fields(kind))]
WITHOUT_PSI = ("fedavg", "fedavgm")  # ignore psi by definition
COUPLED = ("quasi_newton",)  # coordinates depend on each other during the run, not in the limit
STEPS = (3, 1, 2)
ROUNDS = 4


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(2)
    x = [hadamard(8)[:, 1:5] * random.uniform(0.5, 1.5, 4) for _ in STEPS]
    truth = np.array([2.0, -1.5, 1.0, 3.0])
    y = [rows @ (truth + random.standard_normal(4)) for rows in x]
    return ClientData(np.vstack(x), np.concatenate(y), np.array([0, 8, 16, 24]))


@pytest.fixture(scope="module")
def trajectory(data, make_algorithm, drive, whole_steps):
    """Return the models after every round, without the bias: [rounds, ..., 4]."""

    def run(name, psi):
        problem = Problem(data, Linear(4, 1), Squared(), regularizer=psi)
        algorithm = make_algorithm(name, problem, 0.05, 0.7, **({"stage_rounds": 2} if name == "mc_fedda" else {}))
        rounds = 1 if algorithm.one_shot else 10 * ROUNDS if name in COUPLED else ROUNDS
        models = np.array(drive(algorithm, [whole_steps(problem, STEPS)] * rounds)[0])
        models = models[-1:] if name in COUPLED else models
        assert np.abs(models[..., -1]).max() < 1e-9  # the bias stays 0
        return models[..., :-1]

    return run


def rejection(name, psi):
    """Return the error message for an unsupported regularizer, or None."""
    try:
        all_algorithms()[name]().check_pair(psi, Euclidean())
    except UserError as error:
        return str(error)


def scaled(psi, factor):
    strengths = {field.name: factor * getattr(psi, field.name) for field in fields(psi) if "strength" in field.name}
    return replace(psi, **strengths)


@pytest.mark.parametrize("regularizer_name", WEIGHTED)
@pytest.mark.parametrize("name", all_algorithms())
def test_a_factor_multiplies_the_strengths_of_its_coordinate(name, regularizer_name, regularizer, trajectory):
    plain = regularizer(regularizer_name, strength=0.3, l2_strength=0.2)
    given = replace(plain, factors={f"x{i}": factor for i, factor in enumerate(FACTORS)})
    if (message := rejection(name, given)) is not None:
        assert "\n" not in message
        return
    models, without_factors = trajectory(name, given), trajectory(name, plain)
    tolerance = 1e-8 if all_algorithms()[name].one_shot or name in COUPLED else 1e-12
    for i, factor in enumerate(FACTORS):
        np.testing.assert_allclose(
            models[..., i], trajectory(name, scaled(plain, factor))[..., i], rtol=0, atol=tolerance
        )
    assert (np.abs(models[-1] - without_factors[-1]).max() > 1e-3) == (name not in WITHOUT_PSI)
