"""Accelerated proximal gradient method on the mean gradient of the clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Fista(Federated):
    """FISTA (Beck and Teboulle, 2009) with the gradient restart of O'Donoghue and Candes.

    Clients send grad F_m at the query point; the server takes one step per round. eta_c is a step along grad F, so
    client_lr=auto is 1/L of F, not of a client's loss.
    """

    name: str = "fista"
    style = Style("FISTA", "#AA4499", "o", (5, 1))
    broadcast = (Vector("query"),)
    sent = (Vector("gradient"),)
    accumulates_messages = False
    normalized = False
    full_participation = True
    proxes = Proxes(server=1)

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: fista supports no other mirror map")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        ops.assign_gradient(message.gradient, received.query, batches)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "query": w.copy(), "momentum": np.ones(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        rate, query = self.varying.client_lr, state["query"]
        w = self._to_primal(query - self._column(rate) * aggregates.mean["gradient"], rate)
        step = w - state["w"]
        is_uphill = ((query - w) * step).sum(axis=1) > 0
        momentum = np.where(is_uphill, 1.0, state["momentum"])
        new_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        return {"w": w, "query": w + self._column((momentum - 1) / new_momentum) * step, "momentum": new_momentum}

    def output(self, state: State) -> Array:
        return state["w"]
