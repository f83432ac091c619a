"""SCAFFOLD with proximal local steps. Other methods with control variates are in control_variates.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.primitives import (
    add,
    aligned_copy,
    aligned_zeros,
    as_dual,
    descend,
    subtract,
    to_primal,
)
from fco_cli.algorithms.rounds import State
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror import assign_difference


@dataclass(kw_only=True)
class ScaffoldProx(FedAvg):
    """SCAFFOLD with psi in every local step and not at the server, where it would be applied twice.

    Clients also send the change of c_m. The server then averages their w without step normalization, so that w stays
    in a convex set and in the domain of the mirror map. Recovering c_m from w instead would require messages scaled by
    K / K_m and the Euclidean map.
    """

    name: str = "scaffold_prox"
    broadcast = ("w", "c")
    remembered = ("c",)
    sent = ("w", "c")
    delta_arrays = ("c",)
    normalized = False
    accumulates_messages = True
    uses = FedAvg.uses - {"normalize_steps"}
    step_proxes = 1

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, correction = aligned_copy(received.w), aligned_copy(received.c)
        z, total, before = aligned_zeros(received.w), aligned_zeros(received.w), aligned_zeros(received.w)
        subtract(correction, memory.c)  # c - c_m
        for k in range(steps_of(batches)):
            descend(total, w, batches, k, rate)  # total = -eta_c * (sum of gradients)
            dual = as_dual(w, geometry, z)
            for j in range(message.w.shape[0]):
                for i in range(message.w.shape[1]):
                    z[j, i] = dual[j, i] + (total[j, i] - before[j, i]) - rate[j] * correction[j, i]
                    before[j, i] = total[j, i]
            to_primal(z, rate, geometry, w)
        assign_difference(message.w, w, received.w)
        for j in range(message.c.shape[0]):
            for i in range(message.c.shape[1]):
                message.c[j, i] = -total[j, i] / (rate[j] * steps_of(batches)) - memory.c[j, i]

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        add(memory.c, message.c)

    def initial_state(self, w: Array) -> State:
        return super().initial_state(w) | {"c": np.zeros_like(w)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        return super().server_step(state, aggregates) | {"c": state["c"] + aggregates.sum("c")}
