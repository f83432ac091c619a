"""Ditto (Li, Hu, Beirami and Smith, 2021): every client has a model of its own, near the one that all share.

The shared model is Zhj's, to the last bit: exact with psi, whatever the clients. Its paper has no psi. A client's
model v_m goes to the minimum of F_m(v) + psi(v) + strength D_h(v, w), with the Euclidean map strength |v - w|^2 / 2.
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


def shared_steps(received, memory, message, rate, options, batches, geometry):  # bound by `specialize` to Zhj's
    raise NotImplementedError


@dataclass(kw_only=True)
class Ditto(Zhj):
    """Zhj, whose clients also remember a model v_m and move it on the same batches. Nothing more is sent.

    The paper takes a gradient step on all but psi. Here the pull towards w is within the prox, beside psi: the limit is
    the same, and no strength is too large for the step.
    """

    name: str = "ditto"
    strength: float = 1.0  # 0: `local`, each by itself; large: the shared model for all
    personal_rate: float = 1.0  # eta_p of the steps of v_m, as a multiple of eta_c
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
