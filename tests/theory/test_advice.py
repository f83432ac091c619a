"""Tests of the step-size recommendations: estimated constants on known data, and the formulas of the theorems."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from fco_cli.errors import UserError
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.losses import all_losses
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers.ordered import L0
from fco_cli.problem.regularizers.penalties import L1
from fco_cli.simulation.hparams import Hparams
from fco_cli.theory.advice import Constants, estimate_constants, paper_grid
from fco_cli.theory.statements import Grid

KNOWN = Constants(smoothness=4.0, sigma=2.0, zeta=8.0, gradient=27.0, divergence=2.0, steps=8, rounds=32, clients=8)
SIZES = {"rounds": [1], "steps": [2], "clients": [4], "rates": [0.1], "seeds": 2, "dimension": 6}


def test_estimates_on_the_quadratic_instance():
    """L, zeta and B are known exactly for this instance, sigma up to sampling."""
    grid = Grid(**SIZES, noise=1.0, spread=2.0, strength=0.2, radius=1.0)
    instance = grid.instance(4)
    hparams = Hparams(client_lr=0.1, server_lr=1.0, rounds=50, clients_per_round=4, batch_size=1, local_epochs=2)
    run = SimpleNamespace(hparams=hparams, regularizer=instance.regularizer, seed=0)
    found = estimate_constants(run, instance.problem(400, seed=0))
    assert found.smoothness == pytest.approx(instance.smoothness, rel=1e-3)
    gradients = instance.curvature * (instance.centers - instance.center)
    assert found.zeta == pytest.approx(np.linalg.norm(gradients, axis=1).max(), rel=0.1)
    assert 0.7 < found.sigma / instance.noise < 2  # the largest of four clients' estimates from eight batches
    assert found.divergence == pytest.approx(instance.divergence, rel=0.1)
    assert (found.steps, found.rounds, found.clients) == (800, 50, 4)
    assert isinstance(instance.regularizer, L1)


def test_problems_that_are_not_convex_are_refused():
    instance = Grid(**SIZES, noise=1.0, spread=2.0, strength=0.2, radius=1.0).instance(4)
    problem = replace(instance.problem(4, seed=0), regularizer=L0(strength=0.1))
    with pytest.raises(UserError, match="the theorems need a convex problem"):
        estimate_constants(SimpleNamespace(), problem)


def test_recommendations_follow_the_theorems():
    """By hand: B/(L R) = 1/64, its cube root 1/4; sqrt(M B) / (sigma sqrt(K R)) = 4 / (2 * 16)."""
    limits = KNOWN.recommended()
    assert limits["theorem 0, as server_lr * client_lr"] == pytest.approx({"smoothness": 1 / 128, "noise": 0.125})
    assert limits["theorem 1 (bounded gradients)"] == pytest.approx(
        {"smoothness": 1 / 16, "noise": 0.125, "client drift": 0.25 / (8 * 9)}
    )
    assert limits["theorem 2 (quadratic)"] == pytest.approx(
        {
            "smoothness": 1 / 16,
            "noise": 0.125,
            "noise between clients": 0.25 / 16 ** (2 / 3),
            "heterogeneity": 0.25 / 32,
        }
    )
    assert KNOWN.largest_stable == 0.5


def test_without_noise_or_heterogeneity_only_smoothness_limits():
    quiet = Constants(smoothness=4.0, sigma=0.0, zeta=0.0, gradient=1.0, divergence=2.0, steps=8, rounds=32, clients=8)
    limits = quiet.recommended()["theorem 2 (quadratic)"]
    assert min(limits, key=limits.__getitem__) == "smoothness"


def test_the_paper_s_grid_comes_from_the_configuration():
    assert paper_grid() == [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1]


def constants_of(data: ClientData, model: Linear | SparseLinear, loss: str = "logistic", batch_size: int = 99):
    problem = Problem(data, model, all_losses()[loss](), regularizer=L1(strength=0.02))
    hparams = Hparams(
        client_lr=0.1, server_lr=1.0, rounds=5, clients_per_round=3, batch_size=batch_size, local_epochs=1
    )
    return estimate_constants(SimpleNamespace(hparams=hparams, regularizer=problem.regularizer, seed=0), problem)


@pytest.fixture
def labeled(make_problem):
    """Clients of 7, 4 and 9 rows; a third of the features' entries is 0."""
    data = make_problem(loss="logistic").data
    x = np.where(np.random.default_rng(1).random(data.x.shape) < 1 / 3, 0.0, data.x)
    return replace(data, x=x)


def test_sparse_rows_have_the_constants_of_dense_ones(labeled):
    x = labeled.x
    starts = np.append(0, np.cumsum((x != 0).sum(axis=1)))
    stored = SparseRows(x[x != 0], np.nonzero(x)[1].astype(np.int32), starts, x.shape[1])
    dense = constants_of(labeled, Linear(6), batch_size=3)
    sparse = constants_of(replace(labeled, x=stored), SparseLinear(6), batch_size=3)
    for name, value in asdict(dense).items():
        # the power iteration starts from other vectors and ends below L
        assert getattr(sparse, name) == pytest.approx(value, rel=0.05 if name == "smoothness" else 1e-9), name


def test_a_weight_of_two_equals_a_repeated_row(labeled):
    """Batches are whole clients, whose gradients do not depend on the order of rows."""
    twice = np.arange(len(labeled.y)) % 3 == 0
    repeats = 1 + twice
    offsets = np.append(0, np.cumsum(np.add.reduceat(repeats, labeled.offsets[:-1])))
    repeated = ClientData(np.repeat(labeled.x, repeats, axis=0), np.repeat(labeled.y, repeats), offsets)
    weighted = constants_of(replace(labeled, row_weights=repeats.astype(float)), Linear(6))
    expected = constants_of(repeated, Linear(6))
    for name in ("smoothness", "zeta", "gradient", "divergence"):
        assert getattr(weighted, name) == pytest.approx(getattr(expected, name), rel=1e-6), name
    assert constants_of(labeled, Linear(6)).zeta != pytest.approx(weighted.zeta, rel=1e-2)
