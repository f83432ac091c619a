"""Federated dual averaging: Algorithm 3 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A."""

from __future__ import annotations

import numpy as np

from fco_cli.algorithms.base import Federated, State
from fco_cli.algorithms.primitives import descend, free_primal, to_primal
from fco_cli.problem.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array


class FedDualAvg(Federated):
    """Averages dual states, so that the server pools gradients and not primal points."""

    name = "feddualavg"
    client_prox = True
    server_prox = True

    @staticmethod
    @kernel
    def local_steps(z, t, rate, batches, geometry):
        w = np.empty_like(z)
        time = np.empty_like(t)
        for k in range(steps_of(batches)):
            for j in range(t.shape[0]):
                time[j] = t[j] + k * rate[j]  # eta-tilde_{r,k} = eta_s eta_c r K + eta_c k
            to_primal(z, time, geometry, w)  # retrieve primal
            descend(z, w, batches, k, rate)  # query gradient, dual update

    def start(self, w: Array) -> State:
        dual = np.empty_like(w)
        self.problem.to_dual(w, self.geometry, dual)
        return super().start(dual)

    def server(self, state: State, delta: Array, steps: Array) -> State:
        return {"s": self._along(state["s"], delta), "t": state["t"] + self._owed(steps)}

    def output(self, state: State) -> Array:
        return self._to_primal(state["s"], state["t"])

    def _client_model(self, s: Array, t: Array, steps: float) -> Array:
        return self._to_primal(s, t + self.jobs.client_lr * steps)


class FedDualAvgOsp(FedDualAvg):
    """FedDualAvg with "only server proximal" steps (Algorithm 5): clients leave psi out."""

    name = "feddualavg_osp"
    client_prox = False

    @staticmethod
    @kernel
    def local_steps(z, t, rate, batches, geometry):
        w = np.empty_like(z)
        for k in range(steps_of(batches)):
            free_primal(z, t, geometry, w)
            descend(z, w, batches, k, rate)
