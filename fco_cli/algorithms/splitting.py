"""Operator splitting: FedDR (Tran-Dinh, Pham, Phan and Nguyen, 2021), FedADMM (Wang, Marella and Anderson, 2022) and
FedSplit (Pathak and Wainwright, 2020). The three methods differ only in the relaxation parameter alpha.

The listing of FedDR has an additional block, a server that acts as a client without data; it is omitted here, as in the
authors' code. FedADMM with psi at the server is written from memory of its paper. FedSplit with psi and inexact local
solves is Fed-PLT (Bastianello et al.).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.problem.layout import Numbers, record
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class Splitting(Federated):
    """Clients compute x_m = prox_{eta F_m}(y_m), the server w = prox_{eta psi}(sum_m p_m (2 x_m - y_m)).

    A client approximates its prox by K gradient steps, warm-started at the last x_m. The method therefore converges to
    the exact solution; steps started at y_m would leave an error in every round.
    """

    eta_in_steps: float = 2.0  # eta / eta_c; sqrt(L / mu) is a good value if F is strongly convex and eta_c = 1 / L
    alpha: ClassVar[float]  # relaxation: y_m <- y_m + alpha (w - x_m)
    broadcast = (Vector("w"),)
    remembered = (Vector("y"), Vector("x", model=True))
    sent = (Vector("xhat"),)
    accumulates_messages = True
    normalized = False  # x_m is a point, not a sum of steps
    proxes = Proxes(server=1)

    def __post_init__(self) -> None:
        require(0 < self.eta_in_steps < math.inf, "algo.eta_in_steps", self.eta_in_steps, "a number > 0")

    @property
    def numbers(self) -> Numbers:
        """Values of the varying options and of alpha, which is not an option of every subclass."""
        return record({"eta_in_steps": self.eta_in_steps, "alpha": self.alpha})

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = f"euclidean: {self.name} supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        x, y = memory.x, memory.y
        before = ops.reflection(x, y)
        ops.add_scaled_difference(y, options.alpha, received.w, x)  # y_m <- y_m + alpha (w - x_m)
        share = 1 / (1 + options.eta_in_steps)
        for k in range(batches.steps):
            # x <- x - (g + (x - y) / eta) / (1 / eta_c + 1 / eta), as a gradient step followed by a step towards y
            ops.gradient_step(x, x, batches, k, rate)
            ops.add_scaled_difference(x, share, y, x)
        ops.assign_difference(message.xhat, ops.reflection(x, y), before)  # change of 2 x_m - y_m

    def initial_memory(self, w: Array) -> State:
        return {"y": w, "x": w}

    def initial_state(self, w: Array) -> State:
        """Return the state for x_m = y_m = w_0; x_m = prox_{eta F_m}(w_0) as in the papers would need all clients."""
        return self._state_from_mean(w)

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Maintain `mean` = sum_m p_m (2 x_m - y_m) over all clients, also with a sampled cohort."""
        return self._state_from_mean(state["mean"] + aggregates.sum("xhat"))

    def _state_from_mean(self, mean: Array) -> State:
        return {"mean": mean, "w": self._to_primal(mean, self.eta_in_steps * self.varying.client_lr)}

    def output(self, state: State) -> Array:
        return state["w"]


@dataclass(kw_only=True)
class FedDr(Splitting):
    """Randomized Douglas-Rachford splitting (Algorithm 1 of its paper)."""

    name: str = "feddr"
    style = Style("FedDR", "#117733", "o", family="splitting")
    alpha: float = 1.95  # type: ignore[misc]  # the authors' value

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.alpha < 2, "algo.alpha", self.alpha, "above 0, below 2 (2 is fedsplit)")


@dataclass(kw_only=True)
class FedAdmm(Splitting):
    """FedADMM, with multipliers (x_m - y_m) / eta. Without psi it is FedDyn with alpha = 1 / eta."""

    name: str = "fedadmm"
    style = Style("FedADMM", "#117733", "s", (5, 1), family="splitting")
    alpha = 1.0


@dataclass(kw_only=True)
class FedSplit(Splitting):
    """Peaceman-Rachford splitting (full reflections)."""

    name: str = "fedsplit"
    style = Style("FedSplit", "#117733", "^", (4, 1, 1, 1), family="splitting")
    alpha = 2.0
