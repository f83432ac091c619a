"""Federated dual averaging: Algorithm 3 of Yuan, Zaheer and Reddi (2021), and its variant of appendix A.

Fast-FedDA and C-FedDA (Bao, Crawshaw, Luo and Liu, 2022) are dual averaging for strongly convex losses.
Based on the authors' scripts; all gradients have weight 1. The scripts' server stores the number of steps n, the sum G
of the gradients and the sum X of the points at which they were evaluated. The model depends on G and X only through one
vector z, so one vector is sent each way. With the authors' gamma = 1 / eta_c,

    z = w_0 + eta_c ((mu / 2) X - G),   t = eta_c n,   w = to_primal(z / (1 + t mu / 2), t / (1 + t mu / 2)).

X has exactly one term per gradient. The scripts of Fast-FedDA add one more per round; they converge to the optimum of
F - mu |w|^2 / (4 K) + psi.

MC-FedDA runs C-FedDA in stages, each constrained to an l1 ball around its start. The authors' scripts approximate its
prox by soft thresholding followed by projection; the prox here is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, Proxes, Scalar, State, Style, Vector, kernel
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, specialize
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


@dataclass(kw_only=True)
class FedDualAvg(Federated):
    """Local dual averaging steps with averaging of the dual states z.

    t is the cumulative step size, eta_s eta_c r K in the paper: the multiple of psi in to_primal(z, t).
    """

    name: str = "feddualavg"
    style = Style("FedDualAvg", "#0072B2", "o", family="mirror descent and dual averaging")
    broadcast: ClassVar[tuple[Vector, ...]] = (Vector("z"), Scalar("t"))
    sent: ClassVar[tuple[Vector, ...]] = (Vector("z"),)
    accumulates_messages: ClassVar[bool] = False
    proxes = Proxes(step=1, server=1)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, primal = ops.copy(received.z), ops.buffer_like(received.z)
        for k in range(batches.steps):
            t = received.t + k * rate  # eta-tilde_{r,k} = eta_s eta_c r K + eta_c k
            ops.dual_gradient_step(z, t, geometry, batches, k, rate, primal)  # z <- z - eta_c g(to_primal(z, t))
        ops.assign_difference(message.z, z, received.z)

    def initial_state(self, w: Array) -> State:
        return {"z": self._to_dual(w), "t": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        z = self._server_update(state["z"], aggregates.mean["z"])
        return {"z": z, "t": state["t"] + self._step_size(aggregates.steps)}

    def output(self, state: State) -> Array:
        return self._to_primal(state["z"], state["t"])

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        return self._to_primal(end, state["t"] + self.varying.client_lr * steps)


@dataclass(kw_only=True)
class FedDualAvgOsp(FedDualAvg):
    """FedDualAvg with "only server proximal" steps (Algorithm 5): local steps ignore psi."""

    name: str = "feddualavg_osp"
    style = Style("FedDualAvg-OSP", "#56B4E9", "s", (5, 1), family="mirror descent and dual averaging")
    psi_in_steps = False


@kernel
def primal(out, z, t, received, options, geometry):
    """out <- argmin_w t psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w>."""
    weight, center = 1 + t * options.mu / 2, ops.buffer_like(z)
    ops.assign_quotient(center, z, weight)
    ops.to_primal(out, center, t / weight, geometry)


@dataclass(kw_only=True)
class FastFedDa(FedDualAvg):
    """Fast-FedDA: every local step adds its own point to X. mu = 0 is FedDualAvg with eta_s = 1."""

    name: str = "fast_fedda"
    style = Style("Fast-FedDA", "#882255", "o", family="strong convexity")
    mu: float = 0.1  # strong convexity of F; the authors' value for the lasso

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "algo.mu", self.mu, "a number >= 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(
            mirror.name == "euclidean", "mirror", mirror.name, f"euclidean: {self.name} supports no other mirror map"
        )

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w = ops.copy(received.z), ops.buffer_like(received.z)
        for k in range(batches.steps):
            primal(w, z, received.t + k * rate, received, options, geometry)
            ops.gradient_step(z, w, batches, k, rate)
            ops.add_multiple(z, rate * options.mu / 2, w)  # add w to X
        ops.assign_difference(message.z, z, received.z)

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        t = state["t"] + self.varying.client_lr * aggregates.steps
        return {**state, "z": state["z"] + aggregates.mean["z"], "t": t}

    def output(self, state: State) -> Array:
        return self.client_model(state["z"], state, 0)

    @property
    def primal_kernel(self) -> Kernel:
        """Kernel that `local_steps` calls as `primal`."""
        return primal

    @property
    def steps_kernel(self) -> Kernel:
        return specialize(self.local_steps, primal=self.primal_kernel)

    def client_model(self, end: Array, state: State, steps: float) -> Array:
        t, w = state["t"] + self.varying.client_lr * steps, np.empty_like(end)
        retrieve = self.bind_kernel(self.primal_kernel)
        retrieve(w, end, t, self.received(state), self.varying.options, self.geometry)
        return w


@dataclass(kw_only=True)
class CFedDa(FastFedDa):
    """C-FedDA: all local steps add the server's model to X and use the cumulative step size at the end of the round."""

    name: str = "c_fedda"
    style = Style("C-FedDA", "#882255", "s", (5, 1), family="strong convexity")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w = ops.copy(received.z), ops.buffer_like(received.z)
        primal(w, z, received.t, received, options, geometry)
        ops.add_multiple(z, rate * options.mu / 2 * batches.steps, w)  # add K times w to X
        for k in range(batches.steps):
            if k > 0:
                primal(w, z, received.t + batches.steps * rate, received, options, geometry)
            ops.gradient_step(z, w, batches, k, rate)
        ops.assign_difference(message.z, z, received.z)


@kernel
def stage_primal(out, z, t, received, options, geometry):
    """out <- argmin_w t factor psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w> subject to |w - start|_1 <= factor rho."""
    weight, center = 1 + t * options.mu / 2, ops.buffer_like(z)
    ops.assign_quotient(center, z, weight)
    time, radius = t / weight * received.factor, received.factor * options.rho
    ops.to_primal_in_ball(out, center, time, geometry, received.start, radius)


@dataclass(kw_only=True)
class McFedDa(CFedDa):
    """C-FedDA in stages, each restarted at the last model and constrained to an l1 ball around it.

    The strength of psi and the radius are halved after each stage; in the last stage they are psi's own and rho.
    """

    name: str = "mc_fedda"
    style = Style("MC-FedDA", "#882255", "^", (4, 1, 1, 1), family="strong convexity")
    rho: float = 1250.0  # the authors' value in the last stage
    stages: int = 3  # restarts, the first stage included
    stage_rounds: int = 50  # length of all stages but the last; an eighth of all rounds in the authors' scripts
    broadcast = (Vector("z"), Vector("start"), Scalar("t"), Scalar("factor"))
    adds_increments = False  # a message of an earlier stage does not belong to the next one

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rho < math.inf, "algo.rho", self.rho, "a number > 0")
        require(1 <= self.stages <= 60, "algo.stages", self.stages, "a whole number from 1 to 60")
        require(self.stage_rounds >= 1, "algo.stage_rounds", self.stage_rounds, "a whole number >= 1")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        super().check_pair(psi, mirror)
        require(psi.name == "l1", "regularizer", psi.name, "l1: mc_fedda supports no other")

    @property
    def primal_kernel(self) -> Kernel:
        return stage_primal

    def initial_state(self, w: Array) -> State:
        return self._start_stage(w, 0, np.zeros(len(w)))

    def _start_stage(self, w: Array, stage: int, rounds: Array) -> State:
        """Return the initial state of a stage, after `rounds` [J] rounds."""
        factor = np.full(len(w), 2.0 ** (self.stages - 1 - stage))
        return {"z": w, "t": np.zeros(len(w)), "start": w, "factor": factor, "rounds": rounds}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        state = super().server_step(state, aggregates) | {"rounds": state["rounds"] + 1}
        stage, rounds_in_stage = divmod(int(state["rounds"][0]), self.stage_rounds)
        if rounds_in_stage or stage >= self.stages:
            return state
        return self._start_stage(self.output(state), stage, state["rounds"])
