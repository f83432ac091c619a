"""Control variates against client drift (SCAFFOLD: Karimireddy et al., 2020, Algorithm 1, option II).

Local steps go along g - c_m + c. The control variate c_m is the mean of the gradients that client m used in its last
round, and c = sum_m p_m c_m. The methods differ in where psi acts; see also scaffold_prox.py. With full gradients all
but scaffold_osp are exact, for any cohorts and any K_m.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.feddualavg import FedDualAvg
from fco_cli.algorithms.primitives import assign, descend, free_primal, step_along, subtract, to_primal
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class FedDualAvgCv(FedDualAvg):
    """FedDualAvg with control variates, as suggested in the conclusion of its paper; there is no convergence theorem.

    A client's z changes by -eta_c K_m (mean gradient - c_m + c). It sends -eta_c K_m times the change of c_m, which
    converges to 0 (as in SCALLION: Huang, Li and Li, 2023).
    """

    name: str = "feddualavg_cv"
    broadcast = ("z", "c")
    remembered: ClassVar[tuple[str, ...]] = ("c",)
    delta_arrays = ("z",)
    accumulates_messages = True
    normalized = True
    uses = FedDualAvg.uses - {"normalize_steps"}

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w, t, correction = message.z, np.empty_like(received.z), np.empty_like(received.t), received.c.copy()
        assign(z, received.z)
        subtract(correction, memory.c)  # c - c_m
        for k in range(steps_of(batches)):
            for j in range(t.shape[0]):
                t[j] = received.t[j] + k * rate[j]
            if t[0] > 0:
                to_primal(z, t, geometry, w)
            else:  # z is the dual of a model; psi has already been applied
                free_primal(z, t, geometry, w)
            descend(z, w, batches, k, rate)
            step_along(z, rate, correction)  # z <- z - eta_c (g - c_m + c)
        for j in range(z.shape[0]):
            for i in range(z.shape[1]):
                z[j, i] += rate[j] * steps_of(batches) * received.c[j, i] - received.z[j, i]

    @staticmethod
    @kernel
    def remember(received, memory, message, rate, options, steps):
        for j in range(memory.c.shape[0]):
            for i in range(memory.c.shape[1]):  # c_m <- mean gradient
                memory.c[j, i] -= message.z[j, i] / (rate[j] * steps)

    def initial_state(self, w: Array) -> State:
        return super().initial_state(w) | {"c": np.zeros_like(w)}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """Update c <- c + sum_{m in S} p_m (c_m+ - c_m), then take the step of FedDualAvg."""
        message, step_size = aggregates.mean["z"], self._column(self.varying.client_lr * aggregates.steps)
        c = state["c"] - self._column(aggregates.share) * message / step_size
        change = replace(aggregates, mean={"z": message - step_size * state["c"]})
        return super().server_step(state, change) | {"c": c}

    def _client_model(self, end: Array, state: State, steps: float) -> Array:
        return super()._client_model(end - self._column(self.varying.client_lr * steps) * state["c"], state, steps)


@dataclass(kw_only=True)
class Zhj(FedDualAvgCv):
    """Method of Zhang, Hu and Johansson (ICASSP 2024), written from memory, with SCAFFOLD's c and client sampling.

    Every round restarts FedDualAvgCv at the server's model: after k local steps the gradient is taken at
    to_primal(z, eta_c k).
    """

    name: str = "zhj"
    prox_free_steps = 1

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        state = super().server_step(state, aggregates)
        return state | {"z": self._to_dual(self.output(state)), "t": np.zeros_like(state["t"])}


@dataclass(kw_only=True)
class ScaffoldOsp(Zhj):
    """Zhj with psi at the server only. Biased in proportion to eta_c, because local steps ignore psi.

    FedCanon (Zhou et al., 2025) appears to be similar, according to its abstract.
    """

    name: str = "scaffold_osp"
    psi_in_steps = False


@dataclass(kw_only=True)
class Scaffold(ScaffoldOsp):
    """SCAFFOLD, for problems without psi."""

    name: str = "scaffold"
    server_proxes = 0

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(psi.name == "none", "regularizer", psi.name, "none: scaffold has no prox (zhj and scaffold_prox do)")
        require(mirror.name == "euclidean", "mirror", mirror.name, "euclidean: scaffold supports no other mirror map")
