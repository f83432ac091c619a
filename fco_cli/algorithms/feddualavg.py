"""Federated dual averaging: Algorithm 3 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import aligned_copy, descend_dual
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import State
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import assign_difference


@dataclass(kw_only=True)
class FedDualAvg(Federated):
    """Local dual averaging steps with averaging of the dual states z.

    t is the cumulative step size, eta_s eta_c r K in the paper: the multiple of psi in to_primal(z, t).
    """

    name: str = "feddualavg"
    broadcast: ClassVar[tuple[str, ...]] = ("z",)
    broadcast_scalars = ("t",)
    sent = ("z",)
    step_proxes = 1
    server_proxes = 1

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z = aligned_copy(received.z)
        w = np.empty_like(z)
        t = np.empty_like(received.t)
        for k in range(steps_of(batches)):
            for j in range(t.shape[0]):
                t[j] = received.t[j] + k * rate[j]  # eta-tilde_{r,k} = eta_s eta_c r K + eta_c k
            descend_dual(z, t, geometry, batches, k, rate, w)  # retrieve primal, query gradient, dual update
        assign_difference(message.z, z, received.z)

    def initial_state(self, w: Array) -> State:
        return {"z": self._to_dual(w), "t": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        z = self._server_update(state["z"], aggregates.mean["z"])
        return {"z": z, "t": state["t"] + self._step_size(aggregates.steps)}

    def output(self, state: State) -> Array:
        return self._to_primal(state["z"], state["t"])

    def _client_model(self, end: Array, state: State, steps: float) -> Array:
        return self._to_primal(end, state["t"] + self.varying.client_lr * steps)


@dataclass(kw_only=True)
class FedDualAvgOsp(FedDualAvg):
    """FedDualAvg with "only server proximal" steps (Algorithm 5): local steps ignore psi."""

    name: str = "feddualavg_osp"
    psi_in_steps = False
