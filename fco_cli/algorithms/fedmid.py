"""Federated mirror descent: Algorithm 2 of Yuan, Zaheer and Reddi (2021), its variant of appendix A, and FedProx.

FedProx (Li et al., 2020) is extended with a prox of psi at the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, State, Style, Vector, kernel
from fco_cli.errors import require


@dataclass(kw_only=True)
class FedMid(Federated):
    """Local mirror descent (proximal gradient) steps with averaging of the primal states."""

    name: str = "fedmid"
    style = Style("FedMiD", "#D55E00", "^", (4, 1, 1, 1), family="mirror descent and dual averaging")
    broadcast = (Vector("w"),)
    sent = (Vector("w"),)
    accumulates_messages = False
    proxes = Proxes(step=1, server=1)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z = ops.copy(received.w), ops.buffer_like(received.w)
        for k in range(batches.steps):
            ops.to_dual(z, w, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.to_primal(w, z, rate, geometry)  # line 8
        ops.assign_difference(message.w, w, received.w)

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
    style = Style("FedMiD-OSP", "#E69F00", "D", (1.5, 1), family="mirror descent and dual averaging")
    psi_in_steps = False


@dataclass(kw_only=True)
class FedProx(FedMidOsp):
    """FedMiD-OSP whose clients minimize F_m(y) + strength D_h(y, w), where w is the server's model.

    With the Euclidean map the second term is strength |y - w|^2 / 2, as in the paper.
    """

    name: str = "fedprox"
    style = Style("FedProx", "#88CCEE", "d", family="server steps and FedProx")
    strength: float = 0.1  # of the term that keeps a client's model close to the server's

    def __post_init__(self) -> None:
        is_valid = np.isfinite(self.strength) and self.strength >= 0
        require(is_valid, "algo.strength", self.strength, "a number >= 0")

    def check(self) -> None:
        for strength, rate in zip(np.atleast_1d(self.strength), self.varying.client_lr, strict=True):
            allowed = f"at most 1 / hparams.client_lr = {1 / rate:g}: larger steps overshoot the server's model"
            require(strength * rate <= 1, "algo.strength", float(strength), allowed)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, z, start = ops.copy(received.w), ops.buffer_like(received.w), ops.buffer_like(received.w)
        ops.to_dual(start, w, geometry)
        for k in range(batches.steps):
            ops.to_dual(z, w, geometry)
            ops.add_scaled_difference(z, rate * options.strength, start, z)
            ops.gradient_step(z, w, batches, k, rate)  # z <- z - eta_c (g + strength (z - start))
            ops.to_primal(w, z, rate, geometry)
        ops.assign_difference(message.w, w, received.w)

    def effective_steps(self, steps: Array) -> Array:
        """Return sum_{k<K} (1 - eta_c strength)^k: every step damps the earlier ones by 1 - eta_c strength.

        Messages are normalized by this number (as in FedNova), and it scales the step size of the server's prox.
        """
        damping = self.varying.client_lr * self.strength
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(damping > 0, -np.expm1(steps[:, None] * np.log1p(-damping)) / damping, steps[:, None])
