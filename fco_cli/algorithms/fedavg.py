"""Federated averaging: Algorithm 1 of Yuan, Zaheer and Reddi (2021), after McMahan et al. (2017).

`FedAvg` ignores psi; `FedAvgSubgradient`, the paper's FedAvg(∂), adds a subgradient of it to every step.
"""

from __future__ import annotations

import numpy as np

from fco_cli.algorithms.base import Federated, Jobs, State
from fco_cli.algorithms.primitives import descend, psi_subgradient
from fco_cli.errors import require
from fco_cli.problem.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem


class FedAvg(Federated):
    """Averaged local SGD."""

    name = "fedavg"

    @staticmethod
    @kernel
    def local_steps(w, t, rate, batches, geometry):
        for k in range(steps_of(batches)):
            descend(w, w, batches, k, rate)  # w <- w - eta_c g

    def server(self, state: State, delta: Array, steps: Array) -> State:
        return {"s": self._along(state["s"], delta), "t": state["t"] + self._owed(steps)}

    def output(self, state: State) -> Array:
        return state["s"]


class FedAvgSubgradient(FedAvg):
    """Averaged local subgradient steps."""

    name = "fedavg_subgrad"

    def __init__(self, problem: Problem, jobs: Jobs) -> None:
        super().__init__(problem, jobs)
        psi = problem.regularizer
        require(psi.subgradient is not None, "algo", self.name, f"one that needs no subgradient: {psi.name} has none")

    @staticmethod
    @kernel
    def local_steps(w, t, rate, batches, geometry):
        subgradient = np.zeros_like(w)
        for k in range(steps_of(batches)):
            psi_subgradient(w, geometry, subgradient)
            descend(w, w, batches, k, rate)  # w <- w - eta_c (g + subgradient of psi)
            for j in range(w.shape[0]):
                for i in range(w.shape[1]):
                    w[j, i] -= rate[j] * subgradient[j, i]
