"""SCAFFOLD (Karimireddy et al., 2020): FedAvg without client drift, for problems without psi."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import assign, descend, step_along, subtract
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.problem.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Scaffold(Federated):
    """Local steps go along g - c_m + c, where c_m is the mean of the gradients that client m used last and c the
    weighted mean of all c_m.

    A client sends its change of w alone: it moved by -eta_c K_m (mean gradient - c_m + c), so that the server can work
    out how its c_m changed.
    """

    name: str = "scaffold"
    broadcast = ("w", "c")
    remembered = ("c",)
    sent = ("w",)
    normalized = True
    uses = Federated.uses - {"normalize_steps"}

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(psi.name == "none", "regularizer", psi.name, "none: scaffold knows no psi")
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: scaffold knows no other map")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, steps = message.w, steps_of(batches)
        assign(w, received.w)
        correction = received.c.copy()
        subtract(correction, memory.c)  # c - c_m
        for k in range(steps):
            descend(w, w, batches, k, rate)
            step_along(w, rate, correction)  # w <- w - eta_c (g - c_m + c)
        subtract(w, received.w)
        for j in range(w.shape[0]):  # c_m <- c_m - c - Delta_m / (eta_c K_m), the mean of the gradients
            for i in range(w.shape[1]):
                memory.c[j, i] = -correction[j, i] - w[j, i] / (rate[j] * steps)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "c": np.zeros_like(w)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """c <- c + sum_S p_m (c_m+ - c_m), each of which is -c - Delta_m / (eta_c K_m)."""
        mean = aggregates.mean["w"]
        gradient = -mean / self._column(self.varying.client_lr * aggregates.steps)
        return {
            "w": self._along(state["w"], mean),
            "c": state["c"] + self._column(aggregates.share) * (gradient - state["c"]),
        }

    def output(self, state: State) -> Array:
        return state["w"]
