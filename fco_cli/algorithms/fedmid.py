"""Federated mirror descent: Algorithm 2 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import assign, descend, subtract, to_dual, to_primal
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import State
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array


@dataclass(kw_only=True)
class FedMid(Federated):
    """Local mirror descent (proximal gradient) steps with averaging of the primal states."""

    name: str = "fedmid"
    broadcast = ("w",)
    sent = ("w",)
    step_proxes = 1
    server_proxes = 1

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = message.w
        assign(w, received.w)
        z = np.empty_like(w)
        for k in range(steps_of(batches)):
            to_dual(w, geometry, z)
            descend(z, w, batches, k, rate)
            to_primal(z, rate, geometry, w)  # line 8
        subtract(w, received.w)

    def initial_state(self, w: Array) -> State:
        return {"w": w}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        dual = self._server_update(self._to_dual(state["w"]), aggregates.mean["w"])
        return {"w": self._to_primal(dual, self._step_size(aggregates.steps))}  # line 10

    def output(self, state: State) -> Array:
        return state["w"]


@dataclass(kw_only=True)
class FedMidOsp(FedMid):
    """FedMid with "only server proximal" steps (Algorithm 4): local steps ignore psi."""

    name: str = "fedmid_osp"
    psi_in_steps = False
