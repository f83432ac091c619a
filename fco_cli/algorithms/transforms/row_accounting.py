"""Privacy accounting of single rows: epsilon of everything that was computed from a row, by Google's dp-accounting.

Neighboring federations differ in the values of one row; numbers of rows are not secret. A clipped contribution then
changes by at most 2 clip_norm. The bounds are privacy loss distributions of Poisson-sampled Gaussian mechanisms
(Koskela, Jälkö and Honkela, 2020; Doroshenko et al., 2022), or exact where every row is used (Balle and Wang, 2018).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fco_cli.algorithms.transforms.clip_noise import dp_accounting

LOSS_INTERVAL = 1e-3  # grid of privacy losses, which are rounded up; a tenth of it changes epsilon by less than 1 %
LEAST_SAMPLED_NOISE = 0.3  # below it, sampling is ignored: distributions would be long, and epsilon is large anyway


class RowSums(NamedTuple):
    """Noisy sums over rows that one client has released."""

    sums: int
    sampling: float  # probability that a sum contains a given row
    noise_multiplier: float  # standard deviation relative to half of the largest change by one row; 0: no noise


@functools.cache
def row_epsilon(parts: tuple[RowSums, ...], delta: float) -> float:
    """Return epsilon at `delta` for one row of the client that has released these sums; infinite without noise."""
    parts = tuple(part for part in parts if part.sums)
    if any(part.noise_multiplier == 0 for part in parts) or not parts:
        return math.inf if parts else 0.0
    sampled = [part for part in parts if part.sampling < 1 and part.noise_multiplier >= LEAST_SAMPLED_NOISE]
    whole = [part for part in parts if part not in sampled]
    precision = sum(part.sums / part.noise_multiplier**2 for part in whole)  # of Gaussian sums, which compose exactly
    if not sampled:
        return float(dp_accounting().get_epsilon_gaussian(1 / math.sqrt(precision) / 2, delta))
    losses = [_loss_distribution(part.sampling, part.noise_multiplier).self_compose(part.sums) for part in sampled]
    if whole:
        losses.append(_loss_distribution(1.0, 1 / math.sqrt(precision)))
    return float(functools.reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(delta))


@functools.cache
def _loss_distribution(sampling: float, noise_multiplier: float) -> Any:
    """Return the privacy loss distribution of one sum, for neighbors that differ in the values of one row."""
    library = dp_accounting()
    return library.pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        value_discretization_interval=LOSS_INTERVAL,
        sampling_prob=sampling,
        neighboring_relation=library.NeighboringRelation.REPLACE_ONE,
    )


def undominated(clients: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the pairs (count, sampling) that no other pair exceeds in both: epsilon grows with either."""
    kept: list[tuple[int, float]] = []
    for count, sampling in sorted(set(clients), reverse=True):
        if not kept or sampling > kept[-1][1]:
            kept.append((count, sampling))
    return kept


def noise_for_epsilon(epsilon: float, spent: Callable[[float], float], low: float = 1e-2, high: float = 1e5) -> float:
    """Return the smallest noise multiplier, to 0.1 %, for which `spent` of it is at most epsilon."""
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high
