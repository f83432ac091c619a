"""Federated dual averaging: Algorithm 3 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, Scalar, State, Style, Vector, kernel


@dataclass(kw_only=True)
class FedDualAvg(Federated):
    """Local dual averaging steps with averaging of the dual states z.

    t is the cumulative step size, eta_s eta_c r K in the paper: the multiple of psi in to_primal(z, t).
    """

    name: str = "feddualavg"
    style = Style("FedDualAvg", "#0072B2", "o", family="mirror descent and dual averaging")
    broadcast: ClassVar[tuple[Vector, ...]] = (Vector("z"), Scalar("t"))
    sent: ClassVar[tuple[Vector, ...]] = (Vector("z"),)
    accumulates_messages: ClassVar[bool] = False
    proxes = Proxes(step=1, server=1)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, primal = ops.copy(received.z), ops.buffer_like(received.z)
        for k in range(batches.steps):
            t = received.t + k * rate  # eta-tilde_{r,k} = eta_s eta_c r K + eta_c k
            ops.dual_gradient_step(z, t, geometry, batches, k, rate, primal)  # z <- z - eta_c g(to_primal(z, t))
        ops.assign_difference(message.z, z, received.z)

    def initial_state(self, w: Array) -> State:
        return {"z": self._to_dual(w), "t": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        z = self._server_update(state["z"], aggregates.mean["z"])
        return {"z": z, "t": state["t"] + self._step_size(aggregates.steps)}

    def output(self, state: State) -> Array:
        return self._to_primal(state["z"], state["t"])

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        return self._to_primal(end, state["t"] + self.varying.client_lr * steps)


@dataclass(kw_only=True)
class FedDualAvgOsp(FedDualAvg):
    """FedDualAvg with "only server proximal" steps (Algorithm 5): local steps ignore psi."""

    name: str = "feddualavg_osp"
    style = Style("FedDualAvg-OSP", "#56B4E9", "s", (5, 1), family="mirror descent and dual averaging")
    psi_in_steps = False
