"""Client-level differential privacy (DP-FedAvg: McMahan, Ramage, Talwar and Zhang, 2018): clients clip what they send,
the server adds Gaussian noise to the mean, and all that it does from there on is post-processing, psi's prox too.

Neighbors are federations that differ in the rows of one client, not in their number. A cohort is S of M clients without
replacement; a sum of S messages, of norm C at most, then changes by 2 C.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.algorithms.transforms.base import Evaluated, Transform
from fco_cli.errors import UserError, install_extra, require
from fco_cli.kernels.compiled import kernel
from fco_cli.kernels.norms import two_norm
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.regularizers.balls import factor_within
from fco_cli.problem.regularizers.base import scale
from fco_cli.problem.streams import NOISE, generator

if TYPE_CHECKING:
    from fco_cli.algorithms.aggregate import Aggregates
    from fco_cli.algorithms.protocol import Federated
    from fco_cli.algorithms.rounds import Cohort

NOTHING = Evaluated(answers=0, noise_multiplier=0.0)


@dataclass(kw_only=True)
class ClipNoise(Transform):
    """A client's message, all its arrays together, has a norm of at most `clip_norm`; the sum of S messages gets noise
    of standard deviation `noise_multiplier` * `clip_norm`."""

    name: str = "clip_noise"
    clip_norm: float = 1.0
    noise_multiplier: float = 1.0  # 0: clipping alone, and nothing is private
    delta: float = 1e-5  # at which epsilon is told
    noisy = True

    def __post_init__(self) -> None:
        require(self.clip_norm > 0, "transform.clip_norm", self.clip_norm, "a number > 0")
        clipped = math.isfinite(self.clip_norm) or self.noise_multiplier == 0
        require(clipped, "transform.clip_norm", self.clip_norm, "finite where there is noise, which is measured by it")
        sound = self.noise_multiplier == 0 or 1e-6 <= self.noise_multiplier <= 1e6
        require(sound, "transform.noise_multiplier", self.noise_multiplier, "0, or a number from 1e-6 to 1e6")
        require(0 < self.delta < 1, "transform.delta", self.delta, "above 0, below 1")

    def check(self, algorithm: Federated, weighting: str) -> None:
        allowed = f"one without noise: {algorithm.name}'s server adds up what its clients hold, and it would stay there"
        require(not algorithm.keeps_sum, "transform", self.name, allowed)
        require(weighting == "uniform", "hparams.weighting", weighting, "uniform: clip_noise hides one among equals")
        if self.noise_multiplier > 0 and find_spec("dp_accounting") is None:
            raise UserError(f"transform: clip_noise needs dp-accounting: {install_extra('privacy')}")

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        for j in range(message.shape[1]):
            norm = 0.0
            for n in range(message.shape[0]):
                norm = math.hypot(norm, two_norm(message[n, j]))
            if norm > numbers[j].clip_norm:
                for n in range(message.shape[0]):
                    scale(message[n, j], factor_within(norm, numbers[j].clip_norm, message), message[n, j])

    def noise_on_mean(self, cohort: Cohort, numbers: Numbers, largest: Array) -> Array:
        return numbers["noise_multiplier"] * numbers["clip_norm"] * largest / len(cohort.clients)

    def with_noise(self, aggregates: Aggregates, cohort: Cohort, deviation: Array) -> Aggregates:
        noise = generator(cohort.seed, NOISE, cohort.round)
        mean = {
            name: values + np.outer(deviation, noise.standard_normal(values.shape[1])).astype(values.dtype)
            for name, values in aggregates.mean.items()
        }
        return replace(aggregates, mean=mean)

    def spent(
        self,
        rounds: int,
        sampled: int,
        clients: int,
        dropped: Array,
        numbers: Numbers,
        evaluated: Evaluated | None = None,
    ) -> dict[str, Array]:
        """`epsilon` is what the model tells, `epsilon_run` what the rounds and their evaluations do.

        Nothing is claimed for a run in which a message was not finite: it shows in the mean's denominator.
        """
        pairs = list(zip(numbers["noise_multiplier"].tolist(), numbers["delta"].tolist(), strict=True))
        told = {"epsilon": NOTHING} | ({} if evaluated is None else {"epsilon_run": evaluated})
        metrics = {}
        for name, beside in told.items():
            epsilon = [epsilon_of(rounds, sampled, clients, *pair, beside) for pair in pairs]
            metrics[name] = np.where(dropped > 0, math.inf, epsilon)
        return metrics


def epsilon_of(
    rounds: int,
    sampled: int,
    clients: int,
    noise_multiplier: float,
    delta: float,
    evaluated: Evaluated = NOTHING,
) -> float:
    """What of (epsilon, delta) so many rounds and evaluations spend; 0 before the first, infinite without noise."""
    parts = [(rounds, noise_multiplier, sampled), (evaluated.answers, evaluated.noise_multiplier, clients)]
    parts = [part for part in parts if part[0]]
    if any(noise == 0 for _, noise, _ in parts) or not parts:
        return math.inf if parts else 0.0
    total = sum(times * one_round(who, clients, noise)[1] for times, noise, who in parts)
    return float(_accountant().rdp.compute_epsilon(one_round(clients, clients, 1.0)[0], total, delta)[0])


@functools.cache
def one_round(sampled: int, clients: int, noise_multiplier: float) -> tuple[Array, Array]:
    """Orders, and at each how far a round tells neighbors apart (Rényi divergence): several rounds add up.

    The accountant measures noise by how far a sum changes between neighbors: 2 clip_norm. Its bound for a sample (Wang,
    Balle and Kasiviswanathan, 2019) may exceed that for everybody, which then holds for a sample all the more.
    """
    library = _accountant()

    def after(event: Any) -> Any:
        accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
        return accountant.compose(event)

    everybody = library.GaussianDpEvent(noise_multiplier / 2)
    sample = after(library.SampledWithoutReplacementDpEvent(clients, sampled, everybody))
    return sample.orders, np.minimum(sample.rdp, after(everybody).rdp)


def _accountant() -> Any:
    """The library, imported late. Its logging would close whatever was the standard error when it was loaded."""
    import absl.logging
    import dp_accounting

    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
    return dp_accounting
