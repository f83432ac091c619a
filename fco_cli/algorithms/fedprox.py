"""FedProx (Li et al., 2020), extended with a prox of psi at the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.fedmid import FedMidOsp
from fco_cli.algorithms.primitives import assign, descend, subtract, to_dual, to_primal
from fco_cli.errors import require
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import steps_of
from fco_cli.problem.layout import Array


@dataclass(kw_only=True)
class FedProx(FedMidOsp):
    """FedMiD-OSP whose clients minimize F_m(y) + strength D_h(y, w), where w is the server's model.

    With the Euclidean map the second term is strength |y - w|^2 / 2, as in the paper.
    """

    name: str = "fedprox"
    strength: float = 0.1

    def __post_init__(self) -> None:
        is_valid = np.isfinite(self.strength) and self.strength >= 0
        require(is_valid, "algo.strength", self.strength, "a number >= 0")

    def check(self) -> None:
        for strength, rate in zip(np.atleast_1d(self.strength), self.varying.client_lr, strict=True):
            allowed = f"at most 1 / hparams.client_lr = {1 / rate:g}: larger steps overshoot the server's model"
            require(strength * rate <= 1, "algo.strength", float(strength), allowed)

    @staticmethod
    @kernel
    def local_steps(received, memory, message, rate, options, batches, geometry):
        w = message.w
        assign(w, received.w)
        z, start = np.empty_like(w), np.empty_like(w)
        to_dual(w, geometry, start)
        for k in range(steps_of(batches)):
            to_dual(w, geometry, z)
            for j in range(z.shape[0]):  # z <- z - eta_c (g + strength (z - start))
                for i in range(z.shape[1]):
                    z[j, i] -= rate[j] * options[j].strength * (z[j, i] - start[j, i])
            descend(z, w, batches, k, rate)
            to_primal(z, rate, geometry, w)
        subtract(w, received.w)

    def effective_steps(self, steps: Array) -> Array:
        """Return sum_{k<K} (1 - eta_c strength)^k: every step damps the earlier ones by 1 - eta_c strength.

        Messages are normalized by this number (as in FedNova), and it scales the step size of the server's prox.
        """
        damping = self.varying.client_lr * self.strength
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(damping > 0, -np.expm1(steps[:, None] * np.log1p(-damping)) / damping, steps[:, None])
