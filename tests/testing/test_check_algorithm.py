"""Checks of algorithms: every registered method passes, and each check fails for a method with its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from fco_cli.algorithms import all_algorithms, ops
from fco_cli.algorithms.baselines import Centralized
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.fedmid import FedMid, FedMidOsp
from fco_cli.algorithms.protocol import Proxes, Vector
from fco_cli.kernels.compiled import kernel
from fco_cli.testing import check_algorithm
from fco_cli.testing.algorithms import ALGORITHM_CHECKS, LIMIT_CHECKS

FEDERATED = [name for name, kind in all_algorithms().items() if kind.federated]


@pytest.mark.parametrize("check", ALGORITHM_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", FEDERATED)
def test_registered_algorithms_pass_all_checks(name, check):
    check(all_algorithms()[name])


@pytest.mark.parametrize(
    ("name", "limit", "options"),
    [
        ("zhj", "optimum", {}),
        ("scaffold_prox", "optimum", {}),
        ("fedmid_osp", "bias", {}),
        ("feddualavg", "bias", {}),
        ("fast_fedda", "vanishing", {"mu": 0.5}),
    ],
)
def test_limits(name, limit, options):
    check_algorithm(all_algorithms()[name], limit=limit, **options)
    for other in LIMIT_CHECKS.keys() - {limit, "vanishing"}:
        with pytest.raises(AssertionError, match=LIMIT_CHECKS[other].__name__):
            check_algorithm(all_algorithms()[name], limit=other, **options)


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
