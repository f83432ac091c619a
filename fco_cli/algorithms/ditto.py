"""Ditto (Li, Hu, Beirami and Smith, 2021): a shared model w and a personal model v_m per client, extended with psi.

The shared model is bitwise equal to that of `zhj`. The personal model v_m converges to the minimum of
F_m(v) + psi(v) + strength D_h(v, w); with the Euclidean map D_h(v, w) = |v - w|^2 / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fco_cli.algorithms import ops
from fco_cli.algorithms.control_variates import Zhj
from fco_cli.algorithms.protocol import Array, Cohort, Costs, State, Style, Vector, kernel
from fco_cli.errors import require

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
