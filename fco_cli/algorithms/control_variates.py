"""Control variates against client drift: SCAFFOLD, Scaffnew and Ditto.

SCAFFOLD (Karimireddy et al., 2020, Algorithm 1, option II): local steps go along g - c_m + c. The control variate c_m
is the mean of the gradients that client m used in its last round, and c = sum_m p_m c_m. The methods differ in where
psi acts. With full gradients all but scaffold_osp are exact, for any cohorts and any K_m.

Scaffnew (ProxSkip: Mishchenko et al., 2022, Algorithm 2): communication with probability p after every local step.
Extended with psi at the server: ProxSkip allows any convex function in its prox, here consensus plus psi.
With sampled clients it is a randomized block-coordinate method, derived here; for K = 1 proximal MISO (Mairal, 2015).

Ditto (Li, Hu, Beirami and Smith, 2021): a shared model w and a personal model v_m per client, extended with psi. The
shared model is bitwise equal to that of `zhj`. The personal model v_m converges to the minimum of
F_m(v) + psi(v) + strength D_h(v, w); with the Euclidean map D_h(v, w) = |v - w|^2 / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.feddualavg import FedDualAvg
from fco_cli.algorithms.protocol import (
    Aggregates,
    Array,
    Cohort,
    Costs,
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
class FedDualAvgCv(FedDualAvg):
    """FedDualAvg with control variates, as suggested in the conclusion of its paper; there is no convergence theorem.

    A client's z changes by -eta_c K_m (mean gradient - c_m + c). It sends -eta_c K_m times the change of c_m, which
    converges to 0 (as in SCALLION: Huang, Li and Li, 2023).
    """

    name: str = "feddualavg_cv"
    style = Style("FedDualAvg-CV", "#332288", "^", (4, 1, 1, 1), family="control variates")
    broadcast = (Vector("z"), Vector("c"), Scalar("t"))
    remembered: ClassVar[tuple[Vector, ...]] = (Vector("c"),)
    sent = (Vector("z", difference=True),)
    accumulates_messages: ClassVar[bool] = True
    normalized = True

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w, correction = ops.copy(received.z), ops.buffer_like(received.z), ops.copy(received.c)
        ops.subtract(correction, memory.c)  # c - c_m
        for k in range(batches.steps):
            t = received.t + k * rate
            if ops.is_zero(t):  # z is the dual of a model; psi has already been applied
                ops.to_free_primal(w, z, geometry)
            else:
                ops.to_primal(w, z, t, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.subtract_multiple(z, rate, correction)  # z <- z - eta_c (g - c_m + c)
        ops.add_multiple(z, rate * batches.steps, received.c)
        ops.assign_difference(message.z, z, received.z)

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        ops.subtract_multiple(memory.c, 1 / (rate * steps), message.z)  # c_m <- mean gradient

    def initial_state(self, w: Array) -> State:
        return super().initial_state(w) | {"c": np.zeros_like(w)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Update c <- c + sum_{m in S} p_m (c_m+ - c_m), then take the step of FedDualAvg."""
        message, step_size = aggregates.mean["z"], self._column(self.varying.client_lr * aggregates.steps)
        c = state["c"] - self._column(aggregates.share) * message / step_size
        change = replace(aggregates, mean={"z": message - step_size * state["c"]})
        return super().server_step(state, change) | {"c": c}

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        return super().client_model(end - self._column(self.varying.client_lr * steps) * state["c"], state, steps)


@dataclass(kw_only=True)
class Zhj(FedDualAvgCv):
    """Method of Zhang, Hu and Johansson (ICASSP 2024), written from memory, with SCAFFOLD's c and client sampling.

    Every round restarts FedDualAvgCv at the server's model: after k local steps the gradient is taken at
    to_primal(z, eta_c k).
    """

    name: str = "zhj"
    style = Style("ZHJ", "#332288", "D", (5, 1), family="control variates")
    proxes = Proxes(step=1, server=1, skipped_steps=1)

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        state = super().server_step(state, aggregates)
        return state | {"z": self._to_dual(self.output(state)), "t": np.zeros_like(state["t"])}


@dataclass(kw_only=True)
class ScaffoldOsp(Zhj):
    """Zhj with psi at the server only. Biased in proportion to eta_c, because local steps ignore psi.

    FedCanon (Zhou et al., 2025) appears to be similar, according to its abstract.
    """

    name: str = "scaffold_osp"
    style = Style("SCAFFOLD-OSP", "#332288", "v", (1.5, 1), family="control variates")
    psi_in_steps = False


@dataclass(kw_only=True)
class Scaffold(ScaffoldOsp):
    """SCAFFOLD, for problems without psi."""

    name: str = "scaffold"
    style = Style("SCAFFOLD", "#332288", "o", (1, 1))
    proxes = Proxes()

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(psi.name == "none", "regularizer", psi.name, "none: scaffold has no prox (zhj and scaffold_prox do)")
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: scaffold supports no other mirror map")


@dataclass(kw_only=True)
class ScaffoldProx(FedAvg):
    """SCAFFOLD with psi in every local step and not at the server, where it would be applied twice.

    Clients also send the change of c_m. The server then averages their w without step normalization, so that w stays
    in a convex set and in the domain of the mirror map. Recovering c_m from w instead would require messages scaled by
    K / K_m and the Euclidean map.
    """

    name: str = "scaffold_prox"
    style = Style("SCAFFOLD-prox", "#332288", "s", family="control variates")
    broadcast = (Vector("w"), Vector("c"))
    remembered = (Vector("c"),)
    sent = (Vector("w"), Vector("c", difference=True))
    accumulates_messages = True
    normalized = False
    proxes = Proxes(step=1)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w, correction, z = ops.copy(received.w), ops.copy(received.c), ops.buffer_like(received.w)
        total, previous = ops.zeros_like(received.w), ops.zeros_like(received.w)
        ops.subtract(correction, memory.c)  # c - c_m
        for k in range(batches.steps):
            ops.gradient_step(total, w, batches, k, rate)  # total = -eta_c * (sum of gradients)
            dual = ops.as_dual(w, geometry, z)
            ops.corrected_dual_step(z, total, previous, dual, rate, correction)  # z <- dual - eta_c (g - c_m + c)
            ops.to_primal(w, z, rate, geometry)
        ops.assign_difference(message.w, w, received.w)
        ops.assign_quotient(message.c, total, -rate * batches.steps)
        ops.subtract(message.c, memory.c)  # mean gradient - c_m

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        ops.add(memory.c, message.c)

    def initial_state(self, w: Array) -> State:
        return super().initial_state(w) | {"c": np.zeros_like(w)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        return super().server_step(state, aggregates) | {"c": state["c"] + aggregates.sum("c")}


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


@dataclass(kw_only=True)
class ScaffnewSampled(Scaffnew):
    """Scaffnew with sampled clients: only the u_m of the cohort change, and the model uses those of all clients.

    A client outside of the cohort keeps u_m, not h_m: its next h_m = (p / eta_c) (w - u_m) is that of the model it then
    receives. With full participation the rounds are those of Scaffnew.
    """

    name: str = "scaffnew_sampled"
    style = Style("Scaffnew, sampled", "#AA4499", "h", (5, 1), family="control variates")
    full_participation = False


shared_steps = Zhj.local_steps


@dataclass(kw_only=True)
class Ditto(Zhj):
    """Zhj with personal models v_m, stored by the clients and trained on the same batches. Messages are unchanged.

    In the paper strength D_h(v, w) is part of the gradient step. Here it is part of the prox: the limit is the same,
    and the step size does not depend on `strength`.
    """

    name: str = "ditto"
    style = Style("Ditto", "#7F7F7F", "d", (5, 1))
    strength: float = 1.0  # 0: independent models as in `local`; large: all models equal the shared one
    personal_rate: float = 1.0  # eta_p / eta_c, where eta_p is the step size for v_m
    remembered = (Vector("c"), Vector("v", personal=True))
    accumulates_messages = True

    def __post_init__(self) -> None:
        require(0 <= self.strength < math.inf, "algo.strength", self.strength, "a number >= 0")
        require(0 < self.personal_rate < math.inf, "algo.personal_rate", self.personal_rate, "a number > 0")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        shared_steps(received, memory, message, rate, options, batches, geometry)
        v, z = memory.v, ops.buffer_like(memory.v)
        eta = rate * options.personal_rate
        t = eta / (1 + eta * options.strength)
        for k in range(batches.steps):
            # v <- argmin_u <g, u> + psi(u) + strength D_h(u, w) + D_h(u, v) / eta_p; received.z is the dual of w
            ops.to_dual(z, v, geometry)
            ops.gradient_step(z, v, batches, k, eta)
            ops.add_scaled_difference(z, t * options.strength, received.z, z)
            ops.to_primal(v, z, t, geometry)

    def initial_memory(self, w: Array) -> State:
        return {"v": w}

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        costs, steps = super().costs(cohort), int(cohort.steps.sum())
        return costs._replace(prox_calls=costs.prox_calls + steps, gradients=2 * costs.gradients)
