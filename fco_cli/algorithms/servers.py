"""Servers with momentum and adaptive servers.

With momentum, after FedAvgM (Hsu, Qi and Brown, 2019), the server accumulates the mean change, v <- momentum v + Delta,
and uses v in place of Delta. The extension to FedMiD-OSP and FedDualAvg applies the same recursion to the number of
steps, k <- momentum k + K, which scales the prox. Asymptotically v and k both grow by 1 / (1 - momentum), so the fixed
points do not change. With K in place of k the method would minimize F + (1 - momentum) psi.

FedAdagrad, FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2) are extended with psi. Clients take the local steps of
FedMiD-OSP. The server scales the change of every weight by 1 / D with D = sqrt(v) + tau, where v is a second moment of
the changes, and takes a proximal step in this metric:

    w <- argmin_u  sum_i D_i (u_i - w_i - eta_s m_i / D_i)^2 / 2 + eta_s eta_c K psi(u).

The prox step size for weight i is eta_s eta_c K / D_i; the prox has a closed form if psi is separable. At a fixed point
m is eta_c K times a subgradient of psi, independent of D: the fixed points are those of FedMiD-OSP. A common prox step
size for all weights would change them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from fco_cli.algorithms.arrays import names
from fco_cli.algorithms.fedavg import FedAvg
from fco_cli.algorithms.feddualavg import FedDualAvg
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.protocol import Aggregates, Array, Federated, State, Style
from fco_cli.errors import require
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer, all_regularizers


@dataclass(kw_only=True)
class Momentum(Federated):
    """Mixin that adds momentum to an algorithm whose clients send one array."""

    momentum: float = 0.9  # share of the last server step that is added to the next

    def __post_init__(self) -> None:
        require(0 <= self.momentum < 1, "algo.momentum", self.momentum, "at least 0, below 1")

    # Both `super()` calls resolve to the algorithm that this class is combined with.

    def initial_state(self, w: Array) -> State:
        accumulators = {"v": np.zeros_like(w), "steps": np.zeros(len(w))}
        return super().initial_state(w) | accumulators  # type: ignore[safe-super]

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        (name,) = names(self.sent)
        v = self._column(self.momentum) * state["v"] + aggregates.mean[name]
        steps = self.momentum * state["steps"] + aggregates.steps
        accumulated = replace(aggregates, mean={name: v}, steps=steps)
        return super().server_step(state, accumulated) | {"v": v, "steps": steps}  # type: ignore[safe-super]


@dataclass(kw_only=True)
class FedAvgM(Momentum, FedAvg):
    """FedAvgM: w <- w + eta_s v."""

    name: str = "fedavgm"
    style = Style("FedAvgM", "#009E73", "p", (1.5, 1))


@dataclass(kw_only=True)
class FedMidOspM(Momentum, FedMidOsp):
    """FedMiD-OSP with momentum: w <- to_primal(to_dual(w) + eta_s v, eta_s eta_c k)."""

    name: str = "fedmid_osp_m"
    style = Style("FedMiD-OSP-M", "#E69F00", "p", family="server steps and FedProx")


@dataclass(kw_only=True)
class FedDualAvgM(Momentum, FedDualAvg):
    """FedDualAvg with momentum: z <- z + eta_s v, t <- t + eta_s eta_c k."""

    name: str = "feddualavg_m"
    style = Style("FedDualAvg-M", "#0072B2", "p", (5, 1), family="server steps and FedProx")


@dataclass(kw_only=True)
class Adaptive(FedMidOsp):
    """Base class of adaptive servers, with moments m and v of the changes.

    `steps` is the same running mean of K as m is of the changes, so that psi and gradients have the same weight.
    """

    beta1: float = 0.9  # decay rate of m
    tau: float = 1e-3  # added to sqrt(v); smaller values are more adaptive

    def __post_init__(self) -> None:
        require(0 <= self.beta1 < 1, "algo.beta1", self.beta1, "at least 0, below 1")
        require(np.isfinite(self.tau) and self.tau > 0, "algo.tau", self.tau, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        separable = ", ".join(name for name, kind in all_regularizers().items() if kind.separable)
        allowed = f"separable ({separable}): {self.name} has a step size for every weight"
        require(psi.separable, "regularizer", psi.name, allowed)
        require(mirror.name == "euclidean", "mirror", mirror.name, f"euclidean: {self.name} defines its own metric")

    def initial_state(self, w: Array) -> State:
        tau = np.repeat(self._column(self.tau), w.shape[1], axis=1)
        return {"w": w, "m": np.zeros_like(w), "v": tau**2, "steps": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        delta, beta1 = aggregates.mean["w"], self._column(self.beta1)
        m = beta1 * state["m"] + (1 - beta1) * delta
        steps = self.beta1 * state["steps"] + (1 - self.beta1) * aggregates.steps
        v = self.second_moment(state["v"], delta)
        metric = np.sqrt(v) + self._column(self.tau)
        w = np.empty_like(m)
        step_sizes = self._step_size(steps)[:, None] / metric
        self.problem.prox_of_each(self._server_update(state["w"], m / metric), step_sizes, self.geometry, w)
        return {"w": w, "m": m, "v": v, "steps": steps}

    @abstractmethod
    def second_moment(self, v: Array, delta: Array) -> Array:
        """Return v, updated with the change `delta`."""

    def peak_vectors(self, sampled: int, clients: int, size: int) -> int:
        return super().peak_vectors(sampled, clients, size) + 6  # old and new m and v, metric, prox step sizes


@dataclass(kw_only=True)
class FedAdagrad(Adaptive):
    """FedAdagrad: v is the sum of squares. No momentum by default, as in the paper."""

    name: str = "fedadagrad"
    style = Style("FedAdagrad", "#999933", "^", (4, 1, 1, 1), family="server steps and FedProx")
    beta1: float = 0.0

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v + delta**2


@dataclass(kw_only=True)
class FedAdam(Adaptive):
    """FedAdam: v is an exponential moving average of squares."""

    name: str = "fedadam"
    style = Style("FedAdam", "#999933", "o", family="server steps and FedProx")
    beta2: float = 0.99  # decay rate of v

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "algo.beta2", self.beta2, "at least 0, below 1")

    def second_moment(self, v: Array, delta: Array) -> Array:
        beta2 = self._column(self.beta2)
        return beta2 * v + (1 - beta2) * delta**2


@dataclass(kw_only=True)
class FedYogi(FedAdam):
    """FedYogi: v changes by (1 - beta2) times the squares, up or down; it decreases more slowly than in FedAdam."""

    name: str = "fedyogi"
    style = Style("FedYogi", "#999933", "s", (5, 1), family="server steps and FedProx")

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v - (1 - self._column(self.beta2)) * delta**2 * np.sign(v - delta**2)
