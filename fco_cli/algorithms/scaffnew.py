"""Scaffnew (ProxSkip: Mishchenko et al., 2022, Algorithm 2): communication with probability p after every local step.

Extended with psi at the server: ProxSkip allows any convex function in its prox, here consensus plus psi.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import (
    Aggregates,
    Array,
    Cohort,
    Federated,
    LocalSteps,
    Proxes,
    Scalar,
    State,
    Style,
    Vector,
    kernel,
)
from fco_cli.errors import require
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Scaffnew(Federated):
    """Local steps along g - h_m, equally many for all clients: K = 1/p, or geometric with mean 1/p if `coin` is True.

    In the listing a client sends u_m = y - (eta_c / p) h_m and updates h_m <- h_m + (p / eta_c) (w+ - y) with the new
    model w+. Hence h_m = (p / eta_c) (w - u_m), and u_m changes by y - w. A client sends this change and stores u_m.
    """

    name: str = "scaffnew"
    style = Style("Scaffnew", "#AA4499", "*", family="control variates")
    coin: bool = False
    broadcast = (Vector("w"), Scalar("steps"))  # steps: 1/p
    remembered = (Vector("u"),)
    sent = (Vector("w", difference=True),)
    accumulates_messages = True
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: scaffnew supports no other mirror map")

    @property
    def local_step_rule(self) -> LocalSteps:
        return "geometric" if self.coin else "equal"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        y, shift = ops.copy(received.w), ops.buffer_like(received.w)
        ops.assign_scaled_difference(shift, 1 / received.steps, received.w, memory.u)  # eta_c h_m
        for k in range(batches.steps):
            ops.gradient_step(y, y, batches, k, rate)
            ops.add(y, shift)  # y <- y - eta_c (g - h_m)
        ops.assign_difference(message.w, y, received.w)

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        ops.add(memory.u, message.w)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "u": w.copy(), "steps": np.ones(len(w))}

    def initial_memory(self, w: Array) -> State:
        return {"u": w}  # h_m = 0

    def start_round(self, state: State, cohort: Cohort) -> State:
        return state | {"steps": np.full(len(self.varying), cohort.mean_steps)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Maintain u = sum_m p_m u_m over all clients."""
        u = state["u"] + aggregates.sum("w")
        return state | {"w": self._to_primal(u, self.varying.client_lr * state["steps"]), "u": u}

    def output(self, state: State) -> Array:
        return state["w"]
