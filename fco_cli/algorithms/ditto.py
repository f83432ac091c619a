"""Ditto (Li, Hu, Beirami and Smith, 2021): a shared model w and a personal model v_m per client, extended with psi.

The shared model is bitwise equal to that of `zhj`. The personal model v_m converges to the minimum of
F_m(v) + psi(v) + strength D_h(v, w); with the Euclidean map D_h(v, w) = |v - w|^2 / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fco_cli.algorithms.control_variates import Zhj
from fco_cli.algorithms.primitives import descend, to_dual, to_primal
from fco_cli.algorithms.rounds import Cohort, Costs
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array


def shared_steps(received, memory, message, rate, options, batches, geometry):  # placeholder, bound to Zhj.local_steps
    raise NotImplementedError


@dataclass(kw_only=True)
class Ditto(Zhj):
    """Zhj with personal models v_m, stored by the clients and trained on the same batches. Messages are unchanged.

    In the paper strength D_h(v, w) is part of the gradient step. Here it is part of the prox: the limit is the same,
    and the step size does not depend on `strength`.
    """

    name: str = "ditto"
    strength: float = 1.0  # 0: independent models as in `local`; large: all models equal the shared one
    personal_rate: float = 1.0  # eta_p / eta_c, where eta_p is the step size for v_m
    remembered = ("c", "v")
    personal = "v"

    def __post_init__(self) -> None:
        require(0 <= self.strength < math.inf, "algo.strength", self.strength, "a number >= 0")
        require(0 < self.personal_rate < math.inf, "algo.personal_rate", self.personal_rate, "a number > 0")

    @cached_property
    def _parts(self) -> dict[str, Kernel]:
        parts = super()._parts
        return {**parts, "shared_steps": specialize(Zhj.local_steps, parallel=False, **parts)}

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        shared_steps(received, memory, message, rate, options, batches, geometry)
        v, z, eta, time = memory.v, np.empty_like(memory.v), np.empty_like(rate), np.empty_like(rate)
        for j in range(rate.shape[0]):
            eta[j] = rate[j] * options[j].personal_rate
            time[j] = eta[j] / (1 + eta[j] * options[j].strength)
        for k in range(steps_of(batches)):
            # v <- argmin_u <g, u> + psi(u) + strength D_h(u, w) + D_h(u, v) / eta_p; received.z is the dual of w
            to_dual(v, geometry, z)
            descend(z, v, batches, k, eta)
            for j in range(z.shape[0]):
                for i in range(z.shape[1]):
                    z[j, i] += time[j] * options[j].strength * (received.z[j, i] - z[j, i])
            to_primal(z, time, geometry, v)

    def initial_memory(self, w: Array) -> Array:
        return np.stack([np.zeros_like(w), w])

    def costs(self, cohort: Cohort | None) -> Costs:
        assert cohort is not None
        costs, steps = super().costs(cohort), int(cohort.steps.sum())
        return costs._replace(prox_calls=costs.prox_calls + steps, gradients=2 * costs.gradients)
