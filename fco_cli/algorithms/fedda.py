"""Dual averaging for strongly convex losses: Fast-FedDA and C-FedDA (Bao, Crawshaw, Luo and Liu, 2022).

Based on the authors' scripts; all gradients have weight 1. The scripts' server stores the number of steps n, the sum G
of the gradients and the sum X of the points at which they were evaluated. The model depends on G and X only through one
vector z, so one vector is sent each way. With the authors' gamma = 1 / eta_c,

    z = w_0 + eta_c ((mu / 2) X - G),   t = eta_c n,   w = to_primal(z / (1 + t mu / 2), t / (1 + t mu / 2)).

X has exactly one term per gradient. The scripts of Fast-FedDA add one more per round; they converge to the optimum of
F - mu |w|^2 / (4 K) + psi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.feddualavg import FedDualAvg
from fco_cli.algorithms.primitives import assign, descend, subtract, to_primal
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer


def primal(z, t, received, options, geometry, out):  # placeholder, bound by `_parts`
    raise NotImplementedError


@kernel
def strongly_convex_primal(z, t, received, options, geometry, out):
    """out = argmin_w t psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w>."""
    center, time = np.empty_like(z), np.empty_like(t)
    for j in range(z.shape[0]):
        weight = 1 + t[j] * options[j].mu / 2
        time[j] = t[j] / weight
        for i in range(z.shape[1]):
            center[j, i] = z[j, i] / weight
    to_primal(center, time, geometry, out)


@kernel
def add_points(z, rate, steps, options, w):
    """z <- z + eta_c (mu / 2) steps w: add `steps` times w to X."""
    for j in range(z.shape[0]):
        factor = rate[j] * options[j].mu / 2 * steps
        for i in range(z.shape[1]):
            z[j, i] += factor * w[j, i]


@dataclass(kw_only=True)
class FastFedDa(FedDualAvg):
    """Fast-FedDA: every local step adds its own point to X. mu = 0 is FedDualAvg with eta_s = 1."""

    name: str = "fast_fedda"
    mu: float = 0.1  # strong convexity of F; the authors' value for the lasso
    uses = FedDualAvg.uses - {"server_lr"}

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "algo.mu", self.mu, "a number >= 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(
            mirror.name == "euclidean", "mirror", mirror.name, f"euclidean: {self.name} supports no other mirror map"
        )

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        parts = super()._parts
        return {**parts, "primal": specialize(strongly_convex_primal, to_primal=parts["to_primal"])}

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w, t = message.z, np.empty_like(message.z), np.empty_like(received.t)
        assign(z, received.z)
        for k in range(steps_of(batches)):
            for j in range(t.shape[0]):
                t[j] = received.t[j] + k * rate[j]
            primal(z, t, received, options, geometry, w)
            descend(z, w, batches, k, rate)
            add_points(z, rate, 1, options, w)
        subtract(z, received.z)

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        t = state["t"] + self.varying.client_lr * aggregates.steps
        return {**state, "z": state["z"] + aggregates.mean["z"], "t": t}

    def output(self, state: State) -> Array:
        return self._client_model(state["z"], state, 0)

    def _client_model(self, end: Array, state: State, steps: float) -> Array:
        t, w = state["t"] + self.varying.client_lr * steps, np.empty_like(end)
        self._parts["primal"](end, t, self._received(state), self.varying.options, self.geometry, w)
        return w


@dataclass(kw_only=True)
class CFedDa(FastFedDa):
    """C-FedDA: all local steps add the server's model to X and use the cumulative step size at the end of the round."""

    name: str = "c_fedda"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w, t, steps = message.z, np.empty_like(message.z), np.empty_like(received.t), steps_of(batches)
        assign(z, received.z)
        primal(z, received.t, received, options, geometry, w)
        add_points(z, rate, steps, options, w)
        for j in range(t.shape[0]):
            t[j] = received.t[j] + steps * rate[j]
        for k in range(steps):
            if k > 0:
                primal(z, t, received, options, geometry, w)
            descend(z, w, batches, k, rate)
        subtract(z, received.z)
