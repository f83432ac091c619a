"""Tests of adaptive servers, whose fixed points are those of FedMiD-OSP for any metric."""

from __future__ import annotations

import numpy as np
import pytest

from fco_cli.algorithms.rounds import Varying
from fco_cli.algorithms.servers import FedAdam
from fco_cli.errors import UserError
from fco_cli.problem.regularizers.blockwise import Blockwise

SIZES = (7, 4, 9)
ADAPTIVE = ("fedadagrad", "fedadam", "fedyogi")
SEPARABLE = {
    "none": {}, "l1": {"strength": 0.3}, "elastic_net": {"strength": 0.3}, "l2_squared": {}, "l0": {"strength": 0.01},
    "box": {"lower": -0.2, "upper": 0.1}, "linf_ball": {"radius": 0.2}, "non_negative": {},
}  # fmt: skip


class Frozen(FedAdam):
    """FedAdam with constant v = 1."""

    def initial_state(self, w):
        return super().initial_state(w) | {"v": np.ones_like(w)}

    def second_moment(self, v, delta):
        return v


@pytest.mark.parametrize("psi", SEPARABLE)
def test_with_v_frozen_at_1_it_is_fedmid_osp(
    psi, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive
):
    """Bit for bit: beta1 = 0, v = 1, tau = 0; sampled clients of unequal sizes, batches, a bias without psi."""
    problem = make_problem(regularizer(psi, **SEPARABLE[psi]), sizes=SIZES)
    cohorts = cohorts_of(problem, make_hparams(), 6)
    frozen = Frozen(beta1=0.0)
    frozen = frozen.bind(problem, Varying.from_rates(frozen, problem.regularizer, np.array([0.05]), np.array([0.7])))
    frozen.tau = np.zeros(1)
    plain = drive(make_algorithm("fedmid_osp", problem, 0.05, 0.7), cohorts)[0]
    np.testing.assert_array_equal(drive(frozen, cohorts)[0], plain)


@pytest.fixture(scope="module")
def fixed_point(make_problem, make_algorithm, regularizer, whole_steps, drive):
    """Return a problem and its cohort, the fixed point w of FedMiD-OSP and the mean change of the clients there."""

    def converge(psi, rounds=250):
        problem = make_problem(psi or regularizer("l1", strength=0.3), sizes=(7, 8, 9), features=3)
        cohort = whole_steps(problem, [2, 1, 3])
        algorithm = make_algorithm("fedmid_osp", problem, 0.1)
        w = drive(algorithm, [cohort] * rounds)[0][-1]
        aggregates, _ = algorithm.aggregates(algorithm.round({"w": w}, cohort).messages, cohort)
        np.testing.assert_allclose(algorithm.round({"w": w}, cohort).state["w"], w, rtol=0, atol=1e-12)
        return problem, cohort, w, aggregates.mean["w"], aggregates.steps

    return converge


@pytest.mark.parametrize("psi", ["l1", "box", "pieces"])
def test_the_fixed_point_does_not_depend_on_the_metric(psi, fixed_point, make_algorithm, regularizer):
    """The fixed point of FedMiD-OSP is one of the adaptive servers, for any v.

    With one prox step size for all weights, or without its factor eta_c K, regularized weights would change.
    """
    kinds = {
        "l1": regularizer("l1", strength=0.3),
        "box": regularizer("box", lower=-0.1, upper=0.05),
        "pieces": Blockwise(blocks={"weights": {"name": "l1", "strength": 0.3}}),
    }
    problem, cohort, w, delta, steps = fixed_point(kinds[psi])
    assert np.abs(delta[0, :-1]).max() > 1e-2  # psi balances the clients' gradients
    v = np.array([[0.3, 1e-3, 0.02, 4.0]])
    for name in ADAPTIVE:
        algorithm = make_algorithm(name, problem, 0.1, 0.5)
        state = {"w": w, "m": delta, "v": v, "steps": steps}
        for _ in range(3):
            state = algorithm.round(state, cohort).state
        np.testing.assert_allclose(state["w"], w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(state["m"], delta, rtol=0, atol=1e-10)


def test_the_limit_is_that_of_fedmid_osp(fixed_point, make_algorithm, drive):
    problem, cohort, w, _, _ = fixed_point(None)
    algorithm = make_algorithm("fedyogi", problem, 0.1, 0.04, beta1=0.5, beta2=0.5, tau=0.1)
    np.testing.assert_allclose(drive(algorithm, [cohort] * 250)[0][-1], w, rtol=0, atol=1e-8)
    assert problem.kkt_residual(w, problem.risk(w).gradient, problem.regularizer.numbers)[0] > 1e-2  # its bias


@pytest.mark.parametrize("name", ADAPTIVE)
def test_against_plain_loops(name, make_problem, make_algorithm, make_hparams, cohorts_of, regularizer, drive):
    """Reddi et al., Algorithm 2, line by line; Delta from FedAvg's rounds, which take the same local steps."""
    problem = make_problem(regularizer("l1", strength=0.3), sizes=SIZES)
    cohorts = cohorts_of(problem, make_hparams(), 5)
    b1, b2, tau, eta_c, eta_s = 0.6, 0.8, 0.05, 0.05, 0.3
    beta2 = {} if name == "fedadagrad" else {"beta2": b2}
    models = drive(make_algorithm(name, problem, eta_c, eta_s, beta1=b1, tau=tau, **beta2), cohorts)[0]
    plain = make_algorithm("fedavg", problem, eta_c)
    w, m = np.zeros(problem.layout.size), np.zeros(problem.layout.size)
    v, steps = np.full(problem.layout.size, tau**2), 0.0
    for cohort, model in zip(cohorts, models, strict=True):
        delta = plain.round({"w": w[None]}, cohort).state["w"][0] - w
        m, steps = b1 * m + (1 - b1) * delta, b1 * steps + (1 - b1) * cohort.mean_steps
        v = {
            "fedadagrad": v + delta**2,
            "fedadam": b2 * v + (1 - b2) * delta**2,
            "fedyogi": v - (1 - b2) * delta**2 * np.sign(v - delta**2),
        }[name]
        metric = np.sqrt(v) + tau
        z, threshold = w + eta_s * m / metric, 0.3 * eta_s * eta_c * steps / metric
        w = np.sign(z) * np.maximum(np.abs(z) - threshold, 0)
        w[-1] = z[-1]
        np.testing.assert_allclose(model[0], w, rtol=1e-12, atol=1e-14)


def test_regularizers_that_are_not_separable_are_rejected(make_problem, make_algorithm, regularizer):
    with pytest.raises(UserError, match=r"^regularizer: got 'l2_ball', must be separable \(.*l1, .*\): fedadam has"):
        make_algorithm("fedadam", make_problem(regularizer("l2_ball")))
    pieces = Blockwise(blocks={"weights": {"name": "group_lasso", "strength": 0.3, "group_size": 2}})
    with pytest.raises(UserError, match=r"^regularizer: got 'blockwise', must be separable"):
        make_algorithm("fedyogi", make_problem(pieces))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"beta1": 1.0}, "algo.beta1: got 1.0, must be at least 0, below 1"),
        ({"beta2": -0.1}, "algo.beta2: got -0.1, must be at least 0, below 1"),
        ({"tau": 0.0}, "algo.tau: got 0.0, must be a number > 0"),
    ],
)
def test_options_out_of_range(options, line):
    with pytest.raises(UserError) as caught:
        FedAdam(**options)
    assert str(caught.value) == line
