"""Proximal-point methods, whose cohort stays for several rounds: SPPM-AS, S-DANE and FedRed.

SPPM-AS (Yi, Kharisov, Sokolov and Richtarik, 2024): x <- prox_{eta F_S}(x) for the loss F_S of a cohort, solved in
several rounds of communication. S-DANE (Jiang, Rodomanov and Stich, NeurIPS 2024) and FedRed (the same authors, ICML
2024) solve corrected proximal problems at the clients,

    argmin_x F_m(x) - <grad F_m(v) - grad F_S(v), x> + |x - v|^2 / (2 eta),

which takes two rounds: one for the gradient at v, one for the solutions. All three are for psi = 0. The extensions
with psi are derived here: psi is part of every proximal problem. SPPM-AS and FedRed are written from memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.protocol import (
    Aggregates,
    Array,
    Cohort,
    Costs,
    Federated,
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
class ProximalPoint(Federated):
    """Base class: proximal problems with the term |x - v|^2 / (2 eta)."""

    eta_in_steps: float = 2.0  # eta / eta_c
    normalized = False

    def __post_init__(self) -> None:
        require(0 < self.eta_in_steps < math.inf, "algo.eta_in_steps", self.eta_in_steps, "a number > 0")

    def check_pair(self, psi: Regularizer, mirror: Mirror) -> None:
        allowed = f"euclidean: {self.name} supports no other mirror map"
        require(mirror.name == "euclidean", "mirror", mirror.name, allowed)

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        allowed = f"one without noise on the mean: {self.name} keeps a cohort, whereas the accountant assumes samples"
        require(not self.transform.noisy, "transform", self.transform.name, allowed)

    @property
    def _share(self) -> Array:
        """Weight eta_c / (eta_c + eta) of v in a step [J]."""
        return np.asarray(1 / (1 + self.eta_in_steps))


@dataclass(kw_only=True)
class SppmAs(ProximalPoint):
    """Stochastic proximal point method: proximal gradient steps on F_S + psi + |w - x|^2 / (2 eta), one per round.

    After `inner_rounds` rounds x becomes w, and a new cohort is sampled. With full participation this is the proximal
    point method, and exact. A sampled cohort leaves an error that grows with eta.
    """

    name: str = "sppm_as"
    style = Style("SPPM-AS", "#117733", "P", (3, 1, 3, 1, 1, 1), family="splitting")
    inner_rounds: int = 5
    broadcast = (Vector("w"),)
    sent = (Vector("w"),)
    accumulates_messages = False
    proxes = Proxes(server=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.inner_rounds >= 1, "algo.inner_rounds", self.inner_rounds, "a whole number >= 1")

    @property
    def rounds_per_cohort(self) -> int:
        return self.inner_rounds

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        gradient = ops.zeros_like(received.w)
        ops.assign_gradient(gradient, received.w, batches)
        ops.assign_scaled_difference(message.w, rate, ops.zeros_like(received.w), gradient)  # -eta_c grad F_m(w)

    def initial_state(self, w: Array) -> State:
        return {"w": w, "x": w.copy(), "count": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        """w <- prox_{t psi}(w - t (grad F_S(w) + (w - x) / eta)), t = 1 / (1 / eta_c + 1 / eta)."""
        moved = state["w"] + aggregates.mean["w"]
        share = self._share
        moved = moved + self._column(share) * (state["x"] - moved)
        w = self._to_primal(moved, self.varying.client_lr * (1 - share))
        count = (state["count"] + 1) % self.inner_rounds
        return {"w": w, "x": np.where(count[:, None] == 0, w, state["x"]), "count": count}

    def output(self, state: State) -> Array:
        return state["w"]


@kernel
def corrected_steps(x, shift, received, rate, options, batches, geometry):
    """x <- prox_{t psi}(x - t (g(x) - shift + (x - v) / eta)), t = 1 / (1 / eta_c + 1 / eta), once per batch."""
    z, share = ops.buffer_like(x), 1 / (1 + options.eta_in_steps)
    for k in range(batches.steps):
        ops.assign(z, x)
        ops.gradient_step(z, x, batches, k, rate)
        ops.add_multiple(z, rate, shift)
        ops.add_scaled_difference(z, share, received.v, z)
        ops.to_primal(x, z, rate * (1 - share), geometry)


@dataclass(kw_only=True)
class TwoRounds(ProximalPoint):
    """Base class of methods with two kinds of rounds in turn, phase 0 and 1.

    In phase 0 clients send grad F_m(v); the server stores their mean for the corrections of phase 1.
    """

    broadcast = (Vector("v"), Vector("gradient"), Scalar("phase"))
    sent: ClassVar[tuple[Vector, ...]] = (Vector("message"),)
    accumulates_messages: ClassVar[bool] = False
    proxes: ClassVar[Proxes] = Proxes(step=1, server=1)
    last_gradients: ClassVar[int]  # gradients of all rows in phase 1, besides those of the batches

    def check_transform(self, weighting: str) -> None:
        super().check_transform(weighting)
        allowed = f"none: {self.name} sends gradients and solutions in turn, which cannot share residuals or bounds"
        require(self.transform.name == "none", "transform", self.transform.name, allowed)

    def initial_state(self, w: Array) -> State:
        return {"v": w, "gradient": np.zeros_like(w), "phase": np.zeros(len(w))}

    def server_step(self, state: State, aggregates: Aggregates) -> State:
        message = aggregates.mean["message"]
        if not state["phase"].any():
            return state | {"gradient": message, "phase": np.ones_like(state["phase"])}
        return state | {"v": self._next(state["v"], message), "phase": np.zeros_like(state["phase"])}

    def other_models(self, received: State, steps: int) -> list[Array]:
        """Return the models after one and after all local steps of phase 1, up to differences of own gradients."""
        if not received["phase"].any():
            return []
        step = self.varying.client_lr * (1 - self._share)
        moves = [step * count for count in {1, steps}]
        return [self._to_primal(received["v"] - self._column(t) * received["gradient"], t) for t in moves]

    def _next(self, v: Array, message: Array) -> Array:
        """Return the new v, from the mean message of phase 1."""
        raise NotImplementedError

    def output(self, state: State) -> Array:
        return state["v"]

    def costs(self, cohort: Cohort | None) -> Costs:
        """Return the costs of the phase; cohorts are those of rounds 2 k and 2 k + 1."""
        assert cohort is not None
        costs, rows = super().costs(cohort), int(self.problem.data.sizes[cohort.clients].sum())
        if cohort.round % 2 == 0:
            return costs._replace(prox_calls=0, gradients=rows)
        return costs._replace(gradients=costs.gradients + self.last_gradients * rows)


@dataclass(kw_only=True)
class SDane(TwoRounds):
    """S-DANE: v moves along the mean of the clients' gradients at their solutions, v <- prox(v - eta grad).

    Local steps start at v. With one client and exact solutions it is the proximal point method.
    """

    name: str = "s_dane"
    style = Style("S-DANE", "#117733", "D", (1.5, 1), family="splitting")
    last_gradients = 2

    @property
    def rounds_per_cohort(self) -> int:
        return 2

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        if ops.is_zero(received.phase):
            ops.assign_gradient(message.message, received.v, batches)
        else:
            x, shift = ops.copy(received.v), ops.zeros_like(received.v)
            ops.assign_gradient(shift, received.v, batches)
            ops.subtract(shift, received.gradient)  # grad F_m(v) - grad F_S(v)
            corrected_steps(x, shift, received, rate, options, batches, geometry)
            ops.assign_gradient(message.message, x, batches)

    def _next(self, v: Array, message: Array) -> Array:
        eta = self.eta_in_steps * self.varying.client_lr
        return self._to_primal(v - self._column(eta) * message, eta)


@dataclass(kw_only=True)
class FedRed(TwoRounds):
    """FedRed with K steps in every round: clients keep their x_m, and v is their mean.

    The first regularization is the step itself, |x - x_k|^2 / (2 eta_c), the second |x - v|^2 / (2 eta).
    """

    name: str = "fedred"
    style = Style("FedRed", "#117733", "v", (4, 1), family="splitting")
    remembered = (Vector("x", model=True),)
    accumulates_messages = False
    full_participation = True
    proxes = Proxes(step=1)
    last_gradients = 1

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        if ops.is_zero(received.phase):
            ops.assign_gradient(message.message, received.v, batches)
        else:
            shift = ops.zeros_like(received.v)
            ops.assign_gradient(shift, received.v, batches)
            ops.subtract(shift, received.gradient)  # grad F_m(v) - grad F(v)
            corrected_steps(memory.x, shift, received, rate, options, batches, geometry)
            ops.assign_difference(message.message, memory.x, received.v)

    def initial_memory(self, w: Array) -> State:
        return {"x": w}

    def _next(self, v: Array, message: Array) -> Array:
        return v + message
