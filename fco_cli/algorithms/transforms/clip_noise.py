"""Client-level differential privacy (DP-FedAvg: McMahan, Ramage, Talwar and Zhang, 2018).

Clients clip their messages, and the server adds Gaussian noise to the mean. All later computations, including the prox
of psi, are post-processing.

Neighboring federations differ in the rows of one client, not in the number of clients. A cohort is a sample of S of M
clients without replacement. A sum of S messages of norm at most C differs between neighbors by at most 2 C.
"""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.algorithms.transforms.base import Evaluations, Releases, Transform
from fco_cli.errors import UserError, install_extra, require
from fco_cli.kernels.compiled import kernel
from fco_cli.kernels.products import two_norm
from fco_cli.problem.layout import Array, Numbers
from fco_cli.problem.regularizers.base import scale
from fco_cli.problem.regularizers.sets import shrink_factor
from fco_cli.problem.streams import NOISE, generator

if TYPE_CHECKING:
    from fco_cli.algorithms.round import FederatedRound
    from fco_cli.algorithms.rounds import Aggregates, Cohort

NO_EVALUATIONS = Evaluations(answers=0, noise_multiplier=0.0)


def check_clip_and_noise(clip_norm: float, noise_multiplier: float, delta: float) -> None:
    """Raise UserError if the parameters of a transform with clipping and noise are invalid."""
    require(clip_norm > 0, "transform.clip_norm", clip_norm, "a number > 0")
    is_clipped = math.isfinite(clip_norm) or noise_multiplier == 0
    require(is_clipped, "transform.clip_norm", clip_norm, "finite, because it scales the noise")
    is_valid = noise_multiplier == 0 or 1e-6 <= noise_multiplier <= 1e6
    require(is_valid, "transform.noise_multiplier", noise_multiplier, "0, or a number from 1e-6 to 1e6")
    require(0 < delta < 1, "transform.delta", delta, "above 0, below 1")


@dataclass(kw_only=True)
class ClipNoise(Transform):
    """Clipping of messages to `clip_norm` and Gaussian noise on their sum.

    The norm is that of all arrays of a message together. The noise has standard deviation
    `noise_multiplier` * `clip_norm`.
    """

    name: str = "clip_noise"
    clip_norm: float = 1.0  # largest l2 norm of a message; longer ones are scaled down
    noise_multiplier: float = 1.0  # 0: clipping only, no privacy
    delta: float = 1e-5  # delta of (epsilon, delta)-differential privacy
    noisy = True

    def __post_init__(self) -> None:
        check_clip_and_noise(self.clip_norm, self.noise_multiplier, self.delta)

    def check(self, algorithm: FederatedRound, weighting: str) -> None:
        allowed = f"one without noise: {algorithm.name}'s server accumulates messages, and the noise with them"
        require(not algorithm.accumulates_messages, "transform", self.name, allowed)
        require(weighting == "uniform", "hparams.weighting", weighting, "uniform: clip_noise requires equal weights")
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
                    scale(message[n, j], shrink_factor(norm, numbers[j].clip_norm, message), message[n, j])

    def noise_on_mean(self, cohort: Cohort, numbers: Numbers, largest: Array) -> Array:
        return numbers["noise_multiplier"] * numbers["clip_norm"] * largest / len(cohort.clients)

    def with_noise(self, aggregates: Aggregates, cohort: Cohort, deviation: Array) -> Aggregates:
        noise = generator(cohort.seed, NOISE, cohort.round)
        mean = {
            name: values + np.multiply.outer(deviation, noise.standard_normal(values.shape[1:])).astype(values.dtype)
            for name, values in aggregates.mean.items()
        }
        return replace(aggregates, mean=mean)

    def privacy_spent(
        self,
        rounds: int,
        sampled: int,
        clients: int,
        dropped: Array,
        numbers: Numbers,
        evaluated: Evaluations | None = None,
        releases: Releases | None = None,
    ) -> dict[str, Array]:
        """Return `epsilon` of the model and, with `evaluated`, `epsilon_run` of the rounds and the evaluations.

        Both are infinite if a message was not finite: a dropped message changes the denominator of the mean.
        """
        pairs = list(zip(numbers["noise_multiplier"].tolist(), numbers["delta"].tolist(), strict=True))
        evaluations = {"epsilon": NO_EVALUATIONS} | ({} if evaluated is None else {"epsilon_run": evaluated})
        metrics = {}
        for name, released in evaluations.items():
            epsilon = [total_epsilon(rounds, sampled, clients, *pair, released) for pair in pairs]
            metrics[name] = np.where(dropped > 0, math.inf, epsilon)
        return metrics


def total_epsilon(
    rounds: int,
    sampled: int,
    clients: int,
    noise_multiplier: float,
    delta: float,
    evaluated: Evaluations = NO_EVALUATIONS,
) -> float:
    """Return epsilon at `delta` of all rounds and evaluations; 0 if there are none, infinite without noise."""
    parts = [(rounds, noise_multiplier, sampled), (evaluated.answers, evaluated.noise_multiplier, clients)]
    parts = [part for part in parts if part[0]]
    if any(noise == 0 for _, noise, _ in parts) or not parts:
        return math.inf if parts else 0.0
    total = sum(count * round_rdp(size, clients, noise)[1] for count, noise, size in parts)
    return float(dp_accounting().rdp.compute_epsilon(round_rdp(clients, clients, 1.0)[0], total, delta)[0])


@functools.cache
def round_rdp(sampled: int, clients: int, noise_multiplier: float) -> tuple[Array, Array]:
    """Return the Rényi orders and the Rényi divergence of one round at each order; divergences add up over rounds.

    The accountant's noise multiplier is relative to the sensitivity 2 clip_norm. Its bound for sampled cohorts (Wang,
    Balle and Kasiviswanathan, 2019) may exceed the bound for full participation, which also holds for samples.
    """
    library = dp_accounting()

    def compose(event: Any) -> Any:
        accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
        return accountant.compose(event)

    full = library.GaussianDpEvent(noise_multiplier / 2)
    sample = compose(library.SampledWithoutReplacementDpEvent(clients, sampled, full))
    return sample.orders, np.minimum(sample.rdp, compose(full).rdp)


def dp_accounting() -> Any:
    """Import and return dp_accounting. Its absl log handler must not keep a replaced standard error stream."""
    import absl.logging
    import dp_accounting as library

    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
    return library
