"""Control variates for composite problems with one prox scale per round: FedNMap and FedCEF.

FedNMap (Huang, Pu and Johansson, 2026) takes local steps along the normal map of F + psi at z,

    N_m(z) = grad F_m(q) + (z - grad h(q)) / t,   q = to_primal(z, t), for a constant t,

whose mean over the clients is zero where q is the optimum. Written from the abstract; the correction N_m - n_m + n is
derived here. Messages and control variates are those of `zhj`, with N_m in place of the gradient.

FedCEF (Qiu et al., 2026) is `zhj` with compressed messages and one vector down: the server sends the point before its
prox, from which a client computes both the model and c. Written from the abstract. Compression and error feedback are
those of `transform=topk`: the message is a difference to c_m, as in EF21 (Richtarik, Sokolov and Fatkhullin, 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.control_variates import FedDualAvgCv, Zhj
from fco_cli.algorithms.protocol import Aggregates, Array, Cohort, Proxes, Scalar, State, Style, Vector, kernel
from fco_cli.errors import require


@dataclass(kw_only=True)
class FedNMap(FedDualAvgCv):
    """Normal-map steps with control variates; t is `rounds_per_prox` times the step size of a round, eta_s eta_c K.

    z converges to grad h(w*) - t grad F(w*). Without psi the normal map is the gradient, and the method is SCAFFOLD.
    """

    name: str = "fednmap"
    style = Style("FedNMap", "#332288", "P", (3, 1, 1, 1), family="control variates")
    rounds_per_prox: float = 1.0
    accumulates_messages = True

    def __post_init__(self) -> None:
        require(0 < self.rounds_per_prox < math.inf, "algo.rounds_per_prox", self.rounds_per_prox, "a number > 0")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, q, correction = ops.copy(received.z), ops.buffer_like(received.z), ops.copy(received.c)
        pull, dual = ops.buffer_like(received.z), ops.buffer_like(received.z)
        ops.subtract(correction, memory.c)  # n - n_m
        for k in range(batches.steps):
            ops.to_primal(q, z, received.t, geometry)
            ops.assign_difference(pull, z, ops.as_dual(q, geometry, dual))
            ops.gradient_step(z, q, batches, k, rate)
            ops.subtract_multiple(z, rate / received.t, pull)
            ops.subtract_multiple(z, rate, correction)  # z <- z - eta_c (N_m(z) - n_m + n)
        ops.add_multiple(z, rate * batches.steps, received.c)
        ops.assign_difference(message.z, z, received.z)

    def start_round(self, state: State, cohort: Cohort) -> State:
        steps = np.full(len(self.varying), cohort.mean_steps)
        return state | {"t": self.rounds_per_prox * self._step_size(steps)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        return super().server_step(state, aggregates) | {"t": state["t"]}

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        return self._to_primal(end - self._column(self.varying.client_lr * steps) * state["c"], state["t"])


@dataclass(kw_only=True)
class FedCef(Zhj):
    """Zhj with the point before the server's prox as the only broadcast vector.

    A client stores `start`, the dual of its last model, and computes c = (start - z) / (eta_s eta_c K). All clients
    must therefore participate. The rounds are those of `zhj`, with any transform.
    """

    name: str = "fedcef"
    style = Style("FedCEF", "#332288", "X", (2, 1), family="control variates")
    broadcast = (Vector("z"), Scalar("t"), Scalar("inverse"))  # t: eta_s eta_c K, and its inverse; 0 at the start
    remembered = (Vector("c"), Vector("start"))
    accumulates_messages = True
    full_participation = True
    proxes = Proxes(step=1, server=1)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z, c = ops.buffer_like(received.z), ops.buffer_like(received.z), ops.buffer_like(received.z)
        ops.assign_scaled_difference(c, received.inverse, memory.start, received.z)
        correction = ops.copy(c)
        ops.subtract(correction, memory.c)  # c - c_m
        if ops.is_zero(received.t):
            ops.to_free_primal(w, received.z, geometry)
        else:
            ops.to_primal(w, received.z, received.t, geometry)
        ops.to_dual(z, w, geometry)
        ops.assign(memory.start, z)
        for k in range(batches.steps):
            if k > 0:
                ops.to_primal(w, z, k * rate, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.subtract_multiple(z, rate, correction)  # z <- z - eta_c (g - c_m + c)
        ops.add_multiple(z, rate * batches.steps, c)
        ops.assign_difference(message.z, z, memory.start)

    def initial_memory(self, w: Array) -> State:
        return {"start": self._to_dual(w)}

    def initial_state(self, w: Array) -> State:
        return super().initial_state(w) | {"inverse": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Update c as in `zhj`; the new z is the dual of the model minus eta_s eta_c K c."""
        start = state | {"z": self._start(state), "t": np.zeros_like(state["t"])}
        new = FedDualAvgCv.server_step(self, start, aggregates)
        return new | {"inverse": 1 / new["t"]}

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        moved = end - state["z"] + self._start(state)  # the message is relative to the dual of the model
        return super().client_model(moved, state | {"t": np.zeros_like(state["t"])}, steps)

    def _start(self, state: State) -> Array:
        """Return the dual of the model; in the first round z itself."""
        return self._to_dual(self.output(state)) if state["t"].any() else state["z"]
