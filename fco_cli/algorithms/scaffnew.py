"""Scaffnew (ProxSkip: Mishchenko et al., 2022, Algorithm 2): communication with probability p after every local step.

Extended with psi at the server: ProxSkip allows any convex function in its prox, here consensus plus psi.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.primitives import add, assign, descend, subtract
from fco_cli.algorithms.protocol import Federated
from fco_cli.algorithms.rounds import Cohort, LocalSteps, State
from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Scaffnew(Federated):
    """Local steps along g - h_m, equally many for all clients: K = 1/p, or geometric with mean 1/p if `coin` is True.

    In the listing a client sends u_m = y - (eta_c / p) h_m and updates h_m <- h_m + (p / eta_c) (w+ - y) with the new
    model w+. Hence h_m = (p / eta_c) (w - u_m), and u_m changes by y - w. A client sends this change and stores u_m.
    """

    name: str = "scaffnew"
    coin: bool = False
    broadcast = ("w",)
    broadcast_scalars = ("steps",)  # 1/p
    remembered = ("u",)
    sent = ("w",)
    normalized = False
    full_participation = True
    delta_arrays = ("w",)
    accumulates_messages = True
    server_proxes = 1
    uses = Federated.uses - {"server_lr", "normalize_steps"}

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: scaffnew supports no other mirror map")

    @property
    def local_step_rule(self) -> LocalSteps:
        return "geometric" if self.coin else "equal"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        y, step = message.w, np.empty_like(received.w)
        for j in range(step.shape[0]):
            for i in range(step.shape[1]):
                step[j, i] = (received.w[j, i] - memory.u[j, i]) / received.steps[j]  # eta_c h_m
        assign(y, received.w)
        for k in range(steps_of(batches)):
            descend(y, y, batches, k, rate)
            add(y, step)  # y <- y - eta_c (g - h_m)
        subtract(y, received.w)

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        add(memory.u, message.w)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "u": w.copy(), "steps": np.ones(len(w))}

    def initial_memory(self, w: Array) -> Array:
        return w[None].copy()  # u_m = w_0: h_m = 0

    def start_round(self, state: State, cohort: Cohort) -> State:
        return state | {"steps": np.full(len(self.varying), cohort.mean_steps)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Maintain u = sum_m p_m u_m over all clients."""
        u = state["u"] + aggregates.sum("w")
        return state | {"w": self._to_primal(u, self.varying.client_lr * state["steps"]), "u": u}

    def output(self, state: State) -> Array:
        return state["w"]
