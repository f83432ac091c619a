"""Checks of algorithms: every registered method passes, and each check fails for a method with its error."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms, ops
from fco_cli.algorithms.baselines import Centralized
from fco_cli.algorithms.control_variates import Zhj
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.fedmid import FedMid, FedMidOsp
from fco_cli.algorithms.protocol import Proxes, Vector
from fco_cli.kernels.compiled import kernel
from fco_cli.testing import check_algorithm
from fco_cli.testing.algorithms import ALGORITHM_CHECKS, LIMIT_CHECKS
from fco_cli.testing.problems import make_limit_problem, optimum_of, run_checks

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]


@pytest.mark.parametrize("check", ALGORITHM_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FEDERATED)
def test_registered_algorithms_pass_all_checks(name, check):
    check(all_algorithms()[name])


LIMITS: dict[str, tuple[str, dict[str, float]]] = {
    **{name: ("optimum", {}) for name in ("scaffold", "scaffold_prox", "zhj", "feddualavg_cv", "ditto", "fednmap")},
    **{name: ("optimum", {}) for name in ("fedcef", "scaffnew", "scaffnew_sampled", "fista", "quasi_newton")},
    **{name: ("optimum", {}) for name in ("prox_newton", "moments", "fednl", "feddr", "fedadmm", "fedsplit", "s_dane")},
    **{name: ("bias", {}) for name in ("fedmid_osp", "feddualavg", "scaffold_osp", "fedprox")},
    **{name: ("bias", {}) for name in ("fedmid_osp_m", "feddualavg_m", "fedadagrad")},
    **{name: ("vanishing", {"mu": 0.5}) for name in ("fast_fedda", "c_fedda", "mc_fedda")},
    **{name: ("vanishing", {}) for name in ("sppm_as", "fedred")},  # exact, but not after 150 rounds
}
OTHER_LIMITS = (
    "fedmid",  # applies psi twice: minimizes F + 2 psi
    "feddualavg_osp",  # takes gradients at z
    *("fedavg", "fedavgm"),  # ignore psi
    "fedavg_subgrad",  # does not converge with constant steps
    *("fedadam", "fedyogi"),  # server_lr is a step size of a weight, not a factor of client_lr
    "fedfw",  # an error of n^-1/2 is not a third after 8 times the rounds
)
EXAMPLES = ("zhj", "fedmid_osp", "fast_fedda")  # the others run in CI
MARKED = [pytest.param(name, marks=() if name in EXAMPLES else pytest.mark.ci) for name in LIMITS]


def test_the_limit_of_every_method_is_listed():
    assert sorted(FEDERATED) == sorted((*LIMITS, *OTHER_LIMITS))


@pytest.mark.parametrize("name", MARKED)
def test_limits(name):
    limit, options = LIMITS[name]
    LIMIT_CHECKS[limit](all_algorithms()[name], **options)


@pytest.mark.ci
@pytest.mark.parametrize("name", OTHER_LIMITS)
@pytest.mark.parametrize("limit", LIMIT_CHECKS)
def test_methods_with_another_limit_fail(name, limit):
    with pytest.raises(AssertionError, match=f"^{name} fails "):
        run_checks(name, [LIMIT_CHECKS[limit]], all_algorithms()[name])


@pytest.mark.parametrize(("name", "others"), [("zhj", ["bias"]), ("fedmid_osp", ["optimum", "vanishing"])])
def test_a_false_limit_is_found(name, others):
    for other in others:
        with pytest.raises(AssertionError, match=LIMIT_CHECKS[other].__name__):
            check_algorithm(all_algorithms()[name], limit=other)


@pytest.mark.parametrize("name", ["fedmid_osp", "fedfw"])
def test_the_optimum_of_the_limit_problem_depends_on_psi(name):
    """Test that weights of the optimum are 0 and others not, and that twice the strength or radius changes it."""
    problem = make_limit_problem(all_algorithms()[name]())
    optimum, psi = optimum_of(problem), problem.regularizer
    weights = optimum[:-1]
    assert (weights == 0).any()
    assert np.abs(weights[weights != 0]).min() > 0.2
    key = "strength" if name == "fedmid_osp" else "radius"
    twice = replace(problem, regularizer=replace(psi, **{key: 2 * getattr(psi, key)}))
    assert np.abs(optimum_of(twice) - optimum).max() > 0.05


def unregistered(kind):
    """Remove a class from the registry, which lists classes of imported modules (decorator)."""
    kind.__module__ = "not_imported"
    return kind


@unregistered
@dataclass(kw_only=True)
class Forgetful(FedAvg):
    """Stores a part of its state in the object."""

    name: str = "forgetful"

    def server_step(self, state, aggregates):
        self.__dict__["rounds"] = self.__dict__.get("rounds", 0) + 1
        return {"w": state["w"] + aggregates.mean["w"] / self.__dict__["rounds"]}


@unregistered
@dataclass(kw_only=True)
class Mixing(FedAvg):
    """Mixes the jobs of a stack."""

    name: str = "mixing"

    def server_step(self, state, aggregates):
        return {"w": state["w"] + aggregates.mean["w"].mean(axis=0)}


@unregistered
@dataclass(kw_only=True)
class InPlace(FedAvg):
    """Updates the state in place."""

    name: str = "in_place"

    def server_step(self, state, aggregates):
        state["w"] += aggregates.mean["w"]
        return state


@unregistered
@dataclass(kw_only=True)
class Deaf(FedAvg):
    """Replaces NaN in messages."""

    name: str = "deaf"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = ops.copy(received.w)
        for k in range(batches.steps):
            ops.gradient_step(w, w, batches, k, rate)
        ops.assign_difference(message.w, w, received.w)
        for j in range(message.w.shape[0]):
            for i in range(message.w.shape[1]):
                if np.isnan(message.w[j, i]):
                    message.w[j, i] = 0.0


@unregistered
@dataclass(kw_only=True)
class Unmoved(FedAvg):
    """Ignores the messages."""

    name: str = "unmoved"

    def server_step(self, state, aggregates):
        return {"w": state["w"].copy()}


@unregistered
@dataclass(kw_only=True)
class Miscounted(FedMid):
    """Declares two prox calls per step where its text has one."""

    name: str = "miscounted"
    proxes = Proxes(step=2, server=1)


@unregistered
@dataclass(kw_only=True)
class Additional(FedMidOsp):
    """Returns a state with an additional array."""

    name: str = "additional"
    remembered = (Vector("unused"),)
    accumulates_messages = False

    def server_step(self, state, aggregates):
        return super().server_step(state, aggregates) | {"count": np.ones(len(state["w"]))}


@unregistered
@dataclass(kw_only=True)
class HalfPenalty(FedMidOsp):
    """Minimizes F + psi / 2: the server's prox has half of the step size."""

    name: str = "half_penalty"

    def _step_size(self, steps):
        return super()._step_size(steps) / 2


@unregistered
@dataclass(kw_only=True)
class DoublePenalty(Zhj):
    """An exact method for F + 2 psi instead of F + psi."""

    name: str = "double_penalty"

    def _to_primal(self, z, t):
        return super()._to_primal(z, 2 * np.asarray(t))


@pytest.mark.parametrize(("kind", "limit"), [(FedMid, "bias"), (HalfPenalty, "bias"), (DoublePenalty, "optimum")])
def test_a_wrong_weight_of_psi_fails(kind, limit):
    with pytest.raises(AssertionError, match=LIMIT_CHECKS[limit].__name__):
        run_checks(kind.__name__, [LIMIT_CHECKS[limit]], kind)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        (Forgetful, "check_resume"),
        (Mixing, "check_stack_equals_alone"),
        (InPlace, "check_inputs_are_unchanged"),
        (Deaf, "check_lost_messages"),
        (Unmoved, "check_backends_agree"),
        (Miscounted, "check_prox_calls"),
        (Additional, "check_declarations"),
    ],
)
def test_an_error_is_found_and_named(kind, check):
    with pytest.raises(AssertionError, match=rf"^{kind.__name__} fails {check}: "):
        check_algorithm(kind)


def test_a_baseline_is_refused():
    with pytest.raises(AssertionError, match="Centralized does not derive from Federated"):
        check_algorithm(Centralized)


@pytest.mark.ci
@pytest.mark.machine_code
def test_machine_code_is_compared():
    check_algorithm(all_algorithms()["feddualavg"], compiled=True)
