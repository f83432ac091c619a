"""Federated mirror descent: Algorithm 2 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A."""

from __future__ import annotations

import numpy as np

from fco_cli.algorithms.base import Federated, State
from fco_cli.algorithms.primitives import descend, free_primal, to_dual, to_primal
from fco_cli.problem.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array


class FedMid(Federated):
    """Averages primal states after local proximal (mirror descent) steps."""

    name = "fedmid"
    client_prox = True
    server_prox = True

    @staticmethod
    @kernel
    def local_steps(w, t, rate, batches, geometry):
        z = np.empty_like(w)
        for k in range(steps_of(batches)):
            to_dual(w, geometry, z)
            descend(z, w, batches, k, rate)
            to_primal(z, rate, geometry, w)  # line 8

    def server(self, state: State, delta: Array, steps: Array) -> State:
        dual = np.empty_like(delta)
        self.problem.to_dual(state["s"], self.geometry, dual)
        owed = self._owed(steps)
        return {"s": self._to_primal(self._along(dual, delta), owed), "t": state["t"] + owed}  # line 10

    def output(self, state: State) -> Array:
        return state["s"]


class FedMidOsp(FedMid):
    """FedMid with "only server proximal" steps (Algorithm 4): clients leave psi out."""

    name = "fedmid_osp"
    client_prox = False

    @staticmethod
    @kernel
    def local_steps(w, t, rate, batches, geometry):
        z = np.empty_like(w)
        for k in range(steps_of(batches)):
            to_dual(w, geometry, z)
            descend(z, w, batches, k, rate)
            free_primal(z, rate, geometry, w)
