"""Dual averaging that uses strong convexity: Fast-FedDA and C-FedDA (Bao, Crawshaw, Luo and Liu, 2022).

Written after the authors' scripts; weights of gradients other than 1, which the paper may have, are left out. A server
there keeps n, the number of steps, and two sums over them, G of gradients and X of the points where they were taken.
Its model depends on the sums only through one vector, so that one each way is enough: with their gamma = 1 / eta_c

    z = w_0 + eta_c ((mu / 2) X - G),   t = eta_c n,   w = to_primal(z / (1 + t mu / 2), t / (1 + t mu / 2)).

X has a term for every gradient and no others. The scripts of Fast-FedDA add one a round, and their limit is the optimum
of F - mu |w|^2 / (4 K) + psi.
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


def primal(z, t, received, options, geometry, out):  # bound by `specialize` to `penalized`; in mc_fedda.py to another
    raise NotImplementedError


@kernel
def penalized(z, t, received, options, geometry, out):
    """out = argmin_w t psi(w) + (1 + t mu / 2) |w|^2 / 2 - <z, w>."""
    center, time = np.empty_like(z), np.empty_like(t)
    for j in range(z.shape[0]):
        weight = 1 + t[j] * options[j].mu / 2
        time[j] = t[j] / weight
        for i in range(z.shape[1]):
            center[j, i] = z[j, i] / weight
    to_primal(center, time, geometry, out)


@kernel
def count_points(z, rate, steps, options, w):
    """z <- z + eta_c (mu / 2) steps w: X grows by so many times w."""
    for j in range(z.shape[0]):
        factor = rate[j] * options[j].mu / 2 * steps
        for i in range(z.shape[1]):
            z[j, i] += factor * w[j, i]


@dataclass(kw_only=True)
class FastFedDa(FedDualAvg):
    """Every local step averages the point at which it takes a gradient; mu = 0 is FedDualAvg with eta_s = 1."""

    name: str = "fast_fedda"
    mu: float = 0.1  # of the strong convexity of F; the authors' for the lasso
    uses = FedDualAvg.uses - {"server_lr"}

    def __post_init__(self) -> None:
        require(0 <= self.mu < math.inf, "algo.mu", self.mu, "a number >= 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        require(mirror.name == "euclidean", "mirror", mirror.name, f"euclidean: {self.name} knows no other map")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        parts = super()._parts
        return {**parts, "primal": specialize(penalized, to_primal=parts["to_primal"])}

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
            count_points(z, rate, 1, options, w)
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
    """All gradients of a round count as if taken at the server's model, with the time that the round ends at."""

    name: str = "c_fedda"

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        z, w, t, steps = message.z, np.empty_like(message.z), np.empty_like(received.t), steps_of(batches)
        assign(z, received.z)
        primal(z, received.t, received, options, geometry, w)
        count_points(z, rate, steps, options, w)
        for j in range(t.shape[0]):
            t[j] = received.t[j] + steps * rate[j]
        for k in range(steps):
            if k > 0:
                primal(z, t, received, options, geometry, w)
            descend(z, w, batches, k, rate)
        subtract(z, received.z)
