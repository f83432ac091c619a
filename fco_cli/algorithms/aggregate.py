"""What a server makes of its clients' messages: their weighted mean, and their sum with the clients' global weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.fixed_point import as_numbers, rounded
from fco_cli.kernels.compiled import is_finite, kernel, specialize
from fco_cli.problem.layout import Array

prange = range  # Numba's parallel range in the compiled kernel


@dataclass(frozen=True)
class Aggregates:
    """Over the clients whose message is finite; NaN for a job that has none."""

    mean: dict[str, Array]  # name -> [J, P], weighted
    steps: Array  # [J], the mean number of local steps that the mean stands for
    share: Array  # [J], the sum of p_m over these clients: 1 if everybody takes part
    dropped: Array  # [J], how many clients' messages were not finite

    def sum(self, name: str) -> Array:
        """sum_m p_m message_m [J, P], with the weights p_m that all clients together share out."""
        return self.share.astype(self.mean[name].dtype)[:, None] * self.mean[name]


@kernel
def all_finite(messages, i, j):
    """Whether all that client i sent for job j is finite."""
    finite = True
    for n in range(messages.shape[1]):
        message = messages[i, n, j]
        check = message.dtype.type(0)
        for k in range(message.shape[0]):
            check += message[k]  # not finite if any entry is not
        finite = finite and is_finite(check)
    return finite


@kernel
def add_up(messages, weights, stretch, steps, arrived, dropped, total, taken, mean):
    """The weighted mean [sent, J, P] of stretch[i, j] messages[i] over the clients that arrived.

    total [J] is their weight, taken [J] their mean number of steps, dropped [J] how many have not arrived. A job's sums
    run over the clients in their order.
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
                    factor = result.dtype.type(weights[i] * stretch[i, j])
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
class Counted:
    """How often every client's message counts."""

    weights: Array  # [S], in proportion to p_m
    all_weights: float  # the sum over all clients
    steps: Array  # [S, J], K_m
    mean_steps: Array | None  # K [J]; none: every message counts as it is

    @property
    def stretch(self) -> Array:
        """With `mean_steps` a message counts as K / K_m times itself (FedNova; Wang et al., 2020): [S, J].

        A client that takes more steps then moves the mean no further than another, and the method minimizes F with the
        weights p_m. Without it F has the weights p_m K_m.
        """
        return np.ones_like(self.steps) if self.mean_steps is None else self.mean_steps / self.steps

    @property
    def factors(self) -> Array:
        """Likewise, times p_m: [S, J]."""
        return (self.weights / self.all_weights)[:, None] * self.stretch

    def steps_of_mean(self, taken: Array, some: Array) -> Array:
        """The steps that a mean stands for, of clients who took so many; NaN in jobs where there is none: [J]."""
        return taken if self.mean_steps is None else np.where(some, self.mean_steps, np.nan)


def aggregate(messages: Array, names: tuple[str, ...], counted: Counted) -> tuple[Aggregates, Array]:
    """The aggregates of messages [S, sent, J, P], and which client arrived in which job."""
    jobs, size = messages.shape[2:]
    arrived = np.empty((len(messages), jobs), dtype=bool)
    dropped, total, taken = np.empty(jobs, np.int64), np.empty(jobs), np.empty(jobs)
    mean = np.empty((len(names), jobs, size), messages.dtype)
    add_all_up = specialize(add_up, parallel=True)
    add_all_up(messages, counted.weights, counted.stretch, counted.steps, arrived, dropped, total, taken, mean)
    taken = counted.steps_of_mean(taken, total > 0)
    return Aggregates(dict(zip(names, mean, strict=True)), taken, total / counted.all_weights, dropped), arrived


def summed(messages: Array, factors: Array, bits: int) -> tuple[Array, Array]:
    """The sum [sent, J, P] of messages [S, sent, J, P], each as often as factors [S, J] say, in fixed point; and who
    arrived: [S, J]."""
    total, arrived = np.zeros(messages.shape[1:], np.int64), np.empty(factors.shape, dtype=bool)
    for i, (message, factor) in enumerate(zip(messages, factors, strict=True)):
        share = {"all": np.swapaxes(factor[:, None] * message.astype(float), 0, 1)}  # the job axis first
        whole, arrived[i] = rounded(share, bits, len(messages))
        total += np.swapaxes(whole["all"], 0, 1)
    return total, arrived


def of_sum(
    total: Array, bits: int, names: tuple[str, ...], counted: Counted, arrived: Array, dtype: np.dtype
) -> Aggregates:
    """The aggregates of such a sum, of the clients that arrived."""
    share, taken = np.zeros(arrived.shape[1]), np.zeros(arrived.shape[1])
    weights = counted.weights / counted.all_weights
    for weight, here, own in zip(weights, arrived, counted.steps, strict=True):  # whatever the number of jobs
        share, taken = share + weight * here, taken + weight * here * own
    with np.errstate(all="ignore"):
        scale = np.where(share > 0, 1 / share, np.nan)
    mean = (as_numbers(total, bits) * scale[:, None]).astype(dtype)
    taken = counted.steps_of_mean(taken * scale, share > 0)
    return Aggregates(dict(zip(names, mean, strict=True)), taken, share, (~arrived).sum(axis=0))
