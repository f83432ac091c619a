"""Aggregation of the clients' messages, in floating point or fixed point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.fixed_point import from_fixed_point, to_fixed_point
from fco_cli.kernels.compiled import is_finite, kernel, specialize
from fco_cli.problem.layout import Array

prange = range  # Numba's parallel range in the compiled kernel


@dataclass(frozen=True)
class Aggregates:
    """Aggregates over the clients with a finite message; NaN for jobs without any."""

    mean: dict[str, Array]  # weighted means [J, P] by name
    steps: Array  # [J], effective number of gradient steps in the mean
    share: Array  # [J], sum of p_m over these clients; 1 with full participation
    dropped: Array  # [J], number of messages that were not finite

    def sum(self, name: str) -> Array:
        """Return sum_m p_m message_m [J, P], with weights p_m that sum to 1 over all clients."""
        return self.share.astype(self.mean[name].dtype)[:, None] * self.mean[name]


@kernel
def all_finite(messages, i, j):
    """Return True if the message of client i is finite in job j."""
    finite = True
    for n in range(messages.shape[1]):
        message = messages[i, n, j]
        check = message.dtype.type(0)
        for k in range(message.shape[0]):
            check += message[k]  # not finite if an entry is not
        finite = finite and is_finite(check)
    return finite


@kernel
def weighted_mean(messages, weights, step_normalization, steps, arrived, dropped, total, taken, mean):
    """Compute mean [sent, J, P], the weighted mean of step_normalization[i, j] * messages[i] over finite messages.

    Also sets arrived [S, J], the number of other messages dropped [J], the total weight [J] and the mean number of
    steps taken [J]. Sums run over the clients in order.
    """
    for j in prange(mean.shape[1]):
        total[j] = taken[j] = dropped[j] = 0
        for n in range(mean.shape[0]):
            for k in range(mean.shape[2]):
                mean[n, j, k] = 0
        for i in range(messages.shape[0]):
            arrived[i, j] = all_finite(messages, i, j)
            if arrived[i, j]:
                total[j] += weights[i]
                taken[j] += weights[i] * steps[i, j]
                for n in range(mean.shape[0]):
                    message, result = messages[i, n, j], mean[n, j]
                    factor = result.dtype.type(weights[i] * step_normalization[i, j])
                    for k in range(result.shape[0]):
                        result[k] += factor * message[k]
            else:
                dropped[j] += 1
        taken[j] /= total[j]
        for n in range(mean.shape[0]):
            result = mean[n, j]
            scale = result.dtype.type(1 / total[j] if total[j] > 0 else np.nan)
            for k in range(result.shape[0]):
                result[k] *= scale


@dataclass(frozen=True)
class MessageWeights:
    """Weights of the clients' messages in the aggregates."""

    weights: Array  # [S], proportional to p_m
    total_weight: float  # sum over all clients
    steps: Array  # [S, J], effective K_m
    mean_steps: Array | None  # [J], effective mean K; None: no step normalization

    @property
    def step_normalization(self) -> Array:
        """Factors K / K_m [S, J] of the messages (FedNova; Wang et al., 2020); 1 without `mean_steps`.

        With normalization the method minimizes F with weights p_m, otherwise with weights proportional to p_m K_m.
        """
        return np.ones_like(self.steps) if self.mean_steps is None else self.mean_steps / self.steps

    @property
    def factors(self) -> Array:
        """Factors p_m K / K_m of the messages in a sum: [S, J]."""
        return (self.weights / self.total_weight)[:, None] * self.step_normalization

    def mean_effective_steps(self, taken: Array, has_messages: Array) -> Array:
        """Return the effective number of steps in the mean [J]; NaN in jobs without messages.

        `taken` [J] is the mean number of steps of the clients in the mean.
        """
        return taken if self.mean_steps is None else np.where(has_messages, self.mean_steps, np.nan)


def aggregate(messages: Array, names: tuple[str, ...], weights: MessageWeights) -> tuple[Aggregates, Array]:
    """Return the aggregates of messages [S, sent, J, P], and which messages are finite: [S, J]."""
    jobs, size = messages.shape[2:]
    arrived = np.empty((len(messages), jobs), dtype=bool)
    dropped, total, taken = np.empty(jobs, np.int64), np.empty(jobs), np.empty(jobs)
    mean = np.empty((len(names), jobs, size), messages.dtype)
    compiled_mean = specialize(weighted_mean, parallel=True)
    factors = weights.step_normalization
    compiled_mean(messages, weights.weights, factors, weights.steps, arrived, dropped, total, taken, mean)
    taken = weights.mean_effective_steps(taken, total > 0)
    return Aggregates(dict(zip(names, mean, strict=True)), taken, total / weights.total_weight, dropped), arrived


def fixed_point_sum(messages: Array, factors: Array, bits: int) -> tuple[Array, Array]:
    """Return the fixed-point sum [sent, J, P] of messages [S, sent, J, P] times factors [S, J].

    Also returns which messages are finite and within range: [S, J].
    """
    total, arrived = np.zeros(messages.shape[1:], np.int64), np.empty(factors.shape, dtype=bool)
    for i, (message, factor) in enumerate(zip(messages, factors, strict=True)):
        scaled = {"all": np.swapaxes(factor[:, None] * message.astype(float), 0, 1)}  # the job axis first
        integers, arrived[i] = to_fixed_point(scaled, bits, len(messages))
        total += np.swapaxes(integers["all"], 0, 1)
    return total, arrived


def aggregate_sum(
    total: Array, bits: int, names: tuple[str, ...], weights: MessageWeights, arrived: Array, dtype: np.dtype
) -> Aggregates:
    """Return the aggregates from a `fixed_point_sum` of the messages that `arrived` [S, J]."""
    share, taken = np.zeros(arrived.shape[1]), np.zeros(arrived.shape[1])
    client_shares = weights.weights / weights.total_weight
    # A loop over the clients: the order of summation must not depend on the number of jobs.
    for client_share, finite, steps in zip(client_shares, arrived, weights.steps, strict=True):
        share, taken = share + client_share * finite, taken + client_share * finite * steps
    with np.errstate(all="ignore"):
        scale = np.where(share > 0, 1 / share, np.nan)
    mean = (from_fixed_point(total, bits) * scale[:, None]).astype(dtype)
    taken = weights.mean_effective_steps(taken * scale, share > 0)
    return Aggregates(dict(zip(names, mean, strict=True)), taken, share, (~arrived).sum(axis=0))
