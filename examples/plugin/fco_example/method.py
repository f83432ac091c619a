"""An algorithm whose clients have memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms import ops
from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.protocol import Array, Style, Vector, kernel
from fco_cli.errors import require


@dataclass(kw_only=True)
class InertialFedMid(FedMidOsp):
    """FedMiD-OSP whose clients add `inertia` times their last change to the change of their local steps.

    At a fixed point a change amounts to K / (1 - inertia) gradient steps, which `effective_steps` states. The server's
    prox uses this number; otherwise the method would minimize F + (1 - inertia) psi.
    """

    name: str = "fedmid_inertia"
    style = Style("FedMiD with inertia", "#117733", "P", (3, 1, 1, 1), family="mirror descent and dual averaging")
    inertia: float = 0.5
    remembered = (Vector("change"),)
    accumulates_messages = False

    def __post_init__(self) -> None:
        require(0 <= self.inertia < 1, "algo.inertia", self.inertia, "at least 0, below 1")

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = ops.copy(received.w)
        for k in range(batches.steps):
            ops.gradient_step(w, w, batches, k, rate)
        ops.assign_difference(message.w, w, received.w)
        ops.add_multiple(message.w, options.inertia, memory.change)
        ops.assign(memory.change, message.w)

    def effective_steps(self, steps: Array) -> Array:
        return np.asarray(steps, float)[:, None] / (1 - self.inertia)
