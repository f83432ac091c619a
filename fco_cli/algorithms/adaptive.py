"""Adaptive servers: FedAdagrad, FedAdam and FedYogi (Reddi et al., 2021, Algorithm 2) with psi, which is ours.

Clients take FedMiD-OSP's steps, and the server scales every weight's change by D = sqrt(v) + tau, where v follows the
squares of the changes. It then minimizes in that metric,

    w <- argmin_u  sum_i D_i (u_i - w_i - eta_s m_i / D_i)^2 / 2 + eta_s eta_c K psi(u),

so psi acts on weight i for the time eta_s eta_c K / D_i, in closed form where psi is separable. The fixed point, where
m = eta_c K times a subgradient of psi, knows no D: it is FedMiD-OSP's. With one time for all weights it would not be.
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
    """The server keeps m, the running mean of the changes, and v, that of their squares; `steps` is the mean K that m
    stands for, so that psi waits for the gradients while m is young."""

    beta1: float = 0.9  # how much m remembers
    tau: float = 1e-3  # added to sqrt(v): the smaller, the more adaptive

    def __post_init__(self) -> None:
        require(0 <= self.beta1 < 1, "algo.beta1", self.beta1, "at least 0, below 1")
        require(np.isfinite(self.tau) and self.tau > 0, "algo.tau", self.tau, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        separable = ", ".join(name for name, kind in all_regularizers().items() if kind.separable)
        why = f"separable ({separable}): {self.name} has a step size for every weight"
        require(psi.separable, "regularizer", psi.name, why)
        require(mirror.name == "euclidean", "mirror", mirror.name, f"euclidean: {self.name} has a metric of its own")

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
        times = self._step_size(steps)[:, None] / metric
        self.problem.prox_of_each(self._along(state["w"], m / metric), times, self.geometry, w)
        return {"w": w, "m": m, "v": v, "steps": steps}

    @abstractmethod
    def second_moment(self, v: Array, delta: Array) -> Array:
        """v after one more change."""

    def vectors_at_work(self, sampled: int, clients: int) -> int:
        return super().vectors_at_work(sampled, clients) + 6  # m, v and what they were, the metric, the times


@dataclass(kw_only=True)
class FedAdagrad(Adaptive):
    """v adds the squares up: steps shrink for ever. Without momentum, as in the paper."""

    name: str = "fedadagrad"
    beta1: float = 0.0

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v + delta**2


@dataclass(kw_only=True)
class FedAdam(Adaptive):
    """v is a running mean of the squares."""

    name: str = "fedadam"
    beta2: float = 0.99  # how much v remembers

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "algo.beta2", self.beta2, "at least 0, below 1")

    def second_moment(self, v: Array, delta: Array) -> Array:
        beta2 = self._column(self.beta2)
        return beta2 * v + (1 - beta2) * delta**2


@dataclass(kw_only=True)
class FedYogi(FedAdam):
    """v moves by the squares themselves, up or down: where they become small it forgets more slowly than FedAdam."""

    name: str = "fedyogi"

    def second_moment(self, v: Array, delta: Array) -> Array:
        return v - (1 - self._column(self.beta2)) * delta**2 * np.sign(v - delta**2)
