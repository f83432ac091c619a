"""Federated averaging: Algorithm 1 of Yuan, Zaheer and Reddi (2021), after McMahan et al. (2017).

`FedAvg` ignores psi. `FedAvgSubgradient`, the paper's FedAvg(∂), adds a subgradient of psi to every gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class FedAvg(Federated):
    """Local SGD with averaging."""

    name: str = "fedavg"
    style = Style("FedAvg", "#009E73", "v", (6, 2))
    broadcast: ClassVar[tuple[Vector, ...]] = (Vector("w"),)
    sent: ClassVar[tuple[Vector, ...]] = (Vector("w"),)
    accumulates_messages: ClassVar[bool] = False

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = ops.copy(received.w)
        for k in range(batches.steps):
            ops.gradient_step(w, w, batches, k, rate)  # w <- w - eta_c g
        ops.assign_difference(message.w, w, received.w)

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
    style = Style("FedAvg(∂)", "#CC79A7", "P", (3, 1, 3, 1, 1, 1), family="mirror descent and dual averaging")
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
        w, subgradient = ops.copy(received.w), ops.zeros_like(received.w)
        for k in range(batches.steps):
            ops.assign_subgradient(subgradient, w, geometry)
            ops.gradient_step(w, w, batches, k, rate)
            ops.subtract_multiple(w, rate, subgradient)  # w <- w - eta_c (g + subgradient of psi)
        ops.assign_difference(message.w, w, received.w)

    @staticmethod
    @kernel
    def sequential_steps(received, memory, message, rate, options, batches, geometry):
        w, subgradient = ops.copy(received.w), ops.zeros_like(received.w)
        for k in range(batches.steps):
            ops.gradient_step(w, w, batches, k, rate)
            ops.assign_subgradient(subgradient, w, geometry)
            ops.subtract_multiple(w, rate, subgradient)
        ops.assign_difference(message.w, w, received.w)

    @property
    def steps_kernel(self) -> Kernel:
        return self.sequential_steps if self.subgradient_after else self.local_steps
