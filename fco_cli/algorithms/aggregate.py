"""What a server makes of its clients' messages: their weighted mean, and their sum with the clients' global weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.problem.compiled import is_finite, kernel
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Aggregates:
    """Over the clients whose message is finite; NaN for a job that has none."""

    mean: dict[str, Array]  # name -> [J, P], weighted
    steps: Array  # [J], the mean number of local steps that the mean stands for
    share: Array  # [J], the sum of p_m over these clients: 1 if everybody takes part

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
def add_up(messages, weights, stretch, steps, arrived, total, taken, mean):
    """The weighted mean [sent, J, P] of stretch[i, j] messages[i] over the clients that arrived.

    total [J] is their weight, taken [J] their mean number of steps. A job's sums run over the clients in their order.
    """
    for j in range(mean.shape[1]):
        total[j] = taken[j] = 0
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
        taken[j] /= total[j]
        for n in range(mean.shape[0]):
            result = mean[n, j]
            scale = result.dtype.type(1 / total[j] if total[j] > 0 else np.nan)
            for k in range(result.shape[0]):
                result[k] *= scale


def aggregate(
    messages: Array, names: tuple[str, ...], weights: Array, steps: Array, all_weights: float, mean_steps: Array | None
) -> tuple[Aggregates, Array]:
    """The aggregates of messages [S, sent, J, P] of steps [S, J], and which client arrived in which job.

    With `mean_steps` K [J] a message counts as K / K_m times itself (FedNova; Wang et al., 2020): a client that takes
    more steps then moves the mean no further than another, and the method minimizes F with the weights p_m. Without it
    F has the weights p_m K_m.
    """
    jobs, size = messages.shape[2:]
    arrived = np.empty((len(messages), jobs), dtype=bool)
    total, taken, mean = np.empty(jobs), np.empty(jobs), np.empty((len(names), jobs, size), messages.dtype)
    stretch = np.ones_like(steps) if mean_steps is None else mean_steps / steps
    add_up(messages, weights, stretch, steps, arrived, total, taken, mean)
    if mean_steps is not None:
        taken = np.where(total > 0, mean_steps, np.nan)
    return Aggregates(dict(zip(names, mean, strict=True)), taken, total / all_weights), arrived
