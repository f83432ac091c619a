"""Adaptive servers: FedAdagrad, FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2), extended with psi.

Clients take the local steps of FedMiD-OSP. The server scales the change of every weight by 1 / D with
D = sqrt(v) + tau, where v is a second moment of the changes, and takes a proximal step in this metric:

    w <- argmin_u  sum_i D_i (u_i - w_i - eta_s m_i / D_i)^2 / 2 + eta_s eta_c K psi(u),

The prox step size for weight i is eta_s eta_c K / D_i; the prox has a closed form if psi is separable. At a fixed point
m is eta_c K times a subgradient of psi, independent of D: the fixed points are those of FedMiD-OSP. A common prox step
size for all weights would change them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.aggregate import Aggregates
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.rounds import State
from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer, all_regularizers


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

    def peak_vectors(self, sampled: int, clients: int) -> int:
        return super().peak_vectors(sampled, clients) + 6  # old and new m and v, metric, prox step sizes


@dataclass(kw_only=True)
class FedAdagrad(Adaptive):
    """FedAdagrad: v is the sum of squares. No momentum by default, as in the paper."""

    name: str = "fedadagrad"
    beta1: float = 0.0

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v + delta**2


@dataclass(kw_only=True)
class FedAdam(Adaptive):
    """FedAdam: v is an exponential moving average of squares."""

    name: str = "fedadam"
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

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v - (1 - self._column(self.beta2)) * delta**2 * np.sign(v - delta**2)
