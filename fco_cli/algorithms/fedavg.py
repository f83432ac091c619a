"""Federated averaging: Algorithm 1 of Yuan, Zaheer and Reddi (2021), after McMahan et al. (2017).

`FedAvg` ignores psi. `FedAvgSubgradient`, the paper's FedAvg(∂), adds a subgradient of psi to every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import assign, descend, psi_subgradient, step_along, subtract
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class FedAvg(Federated):
    """Local SGD with averaging."""

    name: str = "fedavg"
    broadcast: ClassVar[tuple[str, ...]] = ("w",)
    sent: ClassVar[tuple[str, ...]] = ("w",)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = message.w
        assign(w, received.w)
        for k in range(steps_of(batches)):
            descend(w, w, batches, k, rate)  # w <- w - eta_c g
        subtract(w, received.w)

    def initial_state(self, w: Array) -> State:
        return {"w": w}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        return {"w": self._server_update(state["w"], aggregates.mean["w"])}

    def output(self, state: State) -> Array:
        return state["w"]


@dataclass(kw_only=True)
class FedAvgSubgradient(FedAvg):
    """Local subgradient steps with averaging."""

    name: str = "fedavg_subgrad"
    subgradient_after: bool = False  # True: take the subgradient after the gradient step (authors' code)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(
            psi.subgradient is not None,
            "algo",
            self.name,
            f"another algorithm: no subgradient of {psi.name} is available",
        )

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = message.w
        assign(w, received.w)
        subgradient = np.zeros_like(w)
        for k in range(steps_of(batches)):
            psi_subgradient(w, geometry, subgradient)
            descend(w, w, batches, k, rate)  # w <- w - eta_c (g + subgradient of psi)
            step_along(w, rate, subgradient)
        subtract(w, received.w)

    @staticmethod
    @kernel
    def sequential_steps(received, memory, message, rate, options, batches, geometry):
        w = message.w
        assign(w, received.w)
        subgradient = np.zeros_like(w)
        for k in range(steps_of(batches)):
            descend(w, w, batches, k, rate)
            psi_subgradient(w, geometry, subgradient)
            step_along(w, rate, subgradient)
        subtract(w, received.w)

    @cached_property
    def client_steps(self) -> Kernel:
        steps = self.sequential_steps if self.subgradient_after else self.local_steps
        return specialize(steps, parallel=False, **self._parts)
