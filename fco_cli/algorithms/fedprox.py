"""FedProx (Li et al., 2020): local steps that stay near the model they set out from, with psi at the server (ours)."""

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
    """FedMiD-OSP whose clients also descend strength D_h(y, w) from the model w that they received; with the Euclidean
    map strength |y - w|^2 / 2, as in the paper."""

    name: str = "fedprox"
    strength: float = 0.1

    def __post_init__(self) -> None:
        sound = np.isfinite(self.strength) and self.strength >= 0
        require(sound, "algo.strength", self.strength, "a number >= 0")

    def check(self) -> None:
        for strength, rate in zip(np.atleast_1d(self.strength), self.varying.client_lr, strict=True):
            allowed = f"at most 1 / hparams.client_lr = {1 / rate:g}: steps would overshoot the model they stay near"
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

    def gradients_in(self, steps: Array) -> Array:
        """sum_{k<K} (1 - eta_c strength)^k: every step takes back that share of the ones before it.

        Its own for every K_m: a client's change is normalized by it (as in FedNova), and psi acts for so long.
        """
        share = self.varying.client_lr * self.strength
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(share > 0, -np.expm1(steps[:, None] * np.log1p(-share)) / share, steps[:, None])
