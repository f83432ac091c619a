"""Tests of the limit of every federated method on a heterogeneous problem with full gradients.

Three clients have 7, 4 and 9 rows and take 3, 2 and 3 local steps of size 1/L.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms

SIZES = (7, 4, 9)
EXACT = (
    "scaffold_prox",
    "zhj",
    "feddualavg_cv",
    "ditto",
    "scaffnew",
    "fista",
    "quasi_newton",
    "feddr",
    "fedadmm",
    "fedsplit",
    "prox_newton",
    "fednl",
    "scaffnew_sampled",
    "fednmap",
    "fedcef",
    "s_dane",
    "fedred",
    "sppm_as",
)
NEEDS_ALL = ("s_dane", "sppm_as")  # exact with full participation, biased with sampled clients
SLOW = {"s_dane": 300, "fedred": 300, "sppm_as": 600}  # rounds; the default step of their prox is short
DRIFT = ("fedmid_osp", "feddualavg", "scaffold_osp", "fedprox", "fedmid_osp_m", "feddualavg_m")
VANISHING = ("fast_fedda", "c_fedda", "mc_fedda")  # bias decreases as 1/n despite client drift
TESTED_SEPARATELY = (
    *("fedadam", "fedyogi", "fedadagrad"),  # limits of fedmid_osp (test_adaptive.py)
    "fedfw",  # constraints only (test_fedfw.py)
    "moments",  # one round (test_moments.py)
    *("fedavg", "fedavgm", "scaffold"),  # without psi
    "fedavg_subgrad",  # does not converge with constant steps
    *("fedmid", "feddualavg_osp"),  # solve a different problem, see below
)


def test_every_federated_method_is_listed():
    federated = [name for name, kind in all_algorithms().items() if kind.federated]
    assert sorted(federated) == sorted((*EXACT, *DRIFT, *VANISHING, *TESTED_SEPARATELY))


def test_the_documentation_names_the_exceptions():
    """docs/methods.md: the table of methods that are tested separately."""
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    table = text.split("Methods that are not part of this test:\n\n")[1].split("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(TESTED_SEPARATELY)


@pytest.fixture
def ends(make_problem, regularizer, make_hparams, cohorts_of, make_algorithm, drive, full_gradients, solution, l1_prox):
    """Return the distance of a method's limit from the optimum and its KKT residual.

    `slower` divides eta_c and multiplies eta_s; `strengths` multiplies the strength of psi in the optimum.
    """

    def end(name, loss="squared", sampled=3, rounds=60, rate=1.0, slower=1.0, eta_s=1.0, strengths=1.0, **options):
        strength = (0.3, 0.05)[loss == "logistic"]
        problem = make_problem(regularizer("l1", strength=strength), loss=loss, sizes=SIZES, features=2)
        _, largest = solution(problem, l1_prox(strength))
        optimum, _ = solution(problem, l1_prox(strengths * strength))
        algorithm = make_algorithm(name, problem, rate / largest / slower, slower * eta_s, **options)
        cohorts = cohorts_of(problem, make_hparams(clients_per_round=sampled), rounds, algorithm.local_step_rule)
        w = drive(algorithm, full_gradients(cohorts, SIZES))[0][-1]
        residual = problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0]
        return np.abs(w[0] - optimum).max(), residual

    return end


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_methods(name, loss, ends):
    _, residual = ends(name, loss, rounds=SLOW.get(name, 100))
    assert residual < 1e-10


def test_scaffnew_with_random_numbers_of_steps(ends):
    for loss in ("squared", "logistic"):
        assert ends("scaffnew", loss, coin=True)[1] < 1e-10


SAMPLED = [name for name in EXACT if not all_algorithms()[name].full_participation and name not in NEEDS_ALL]


@pytest.mark.parametrize("name", SAMPLED)
def test_exact_methods_with_partial_participation(name, ends):
    assert ends(name, sampled=2, rounds=150, rate=0.5)[1] < 1e-10


@pytest.mark.parametrize("name", DRIFT)
def test_the_bias_is_proportional_to_client_lr(name, ends):
    """With eta_s eta_c fixed, a tenth of eta_c gives a tenth of the bias."""
    light = {"eta_s": 0.4, "momentum": 0.6} if name.endswith("_m") else {}
    (far, residual), (near, _), (nearest, _) = (
        ends(name, rounds=120, rate=0.4, slower=slower, **light) for slower in (1, 10, 100)
    )
    assert residual > 3e-3
    assert far > near > 1e-5
    np.testing.assert_allclose(near / nearest, 10, rtol=0.15)


@pytest.mark.parametrize("name", VANISHING)
def test_the_bias_decreases_with_the_rounds(name, ends):
    """Eight times the rounds give less than a third of the error."""
    options = {"mu": 0.5} | ({"stages": 1} if name == "mc_fedda" else {})
    (early, _), (late, _) = (ends(name, rounds=rounds, **options) for rounds in (20, 160))
    assert 1e-5 < late < early / 3


def test_methods_that_solve_a_different_problem(ends):
    """FedMiD applies psi at the clients and again at the server; FedDualAvg-OSP takes gradients at z."""
    once, _ = ends("fedmid", rounds=120, rate=0.4, slower=100)
    twice, _ = ends("fedmid", rounds=120, rate=0.4, slower=100, strengths=2.0)
    assert twice < 1e-3 < 1e-2 < once
    for slower in (1, 100):
        assert ends("feddualavg_osp", rounds=120, rate=0.4, slower=slower)[1] > 1e-2
