"""Inputs and results of a round: job parameters, cohort, message buffers, result and costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import HasNumbers, Numbers, stack_numbers

State = dict[str, Array]  # arrays by name; the first axis is J
Memory = Iterable[Array]  # stored arrays [client_arrays, J, P] of each client
Buffers = tuple[Array, Array]  # messages [S, sent, J, P] and client memory [S, client_arrays, J, P]

# Number of local steps per round. epochs: from each client's own epochs; equal: the rounded mean of those for all
# clients; geometric: the same number for all clients, drawn per round from the geometric distribution with that mean.
LocalSteps = Literal["epochs", "equal", "geometric"]


@dataclass(frozen=True)
class Varying:
    """Parameters that may differ between jobs."""

    client_lr: Array  # [J], eta_c
    server_lr: Array  # [J], eta_s
    psi: Numbers  # [J], records of the regularizer's parameters
    options: Numbers  # [J], records of the algorithm's options
    transform: Numbers | None = None  # [J], records of the transform's parameters; None: equal for all jobs

    @classmethod
    def from_rates(cls, algorithm: HasNumbers, psi: HasNumbers, client_lr: Array, server_lr: Array) -> Varying:
        """Return the parameters of jobs that differ only in their learning rates."""
        jobs = len(client_lr)
        return cls(client_lr, server_lr, stack_numbers([psi] * jobs), stack_numbers([algorithm] * jobs))

    def __len__(self) -> int:
        return len(self.client_lr)

    def take(self, keep: Array) -> Varying:
        """Return the parameters of the jobs with indices `keep`."""
        transform = None if self.transform is None else self.transform[keep]
        return Varying(self.client_lr[keep], self.server_lr[keep], self.psi[keep], self.options[keep], transform)


@dataclass(frozen=True)
class Cohort:
    """Clients of one round, with their batches and weights."""

    clients: Array  # [S]
    order: Array  # row indices within each client's data, concatenated over the clients
    edges: Array  # batch b is order[edges[b]:edges[b + 1]]
    first: Array  # [S + 1]; client i has the batches first[i] to first[i + 1] - 1
    weights: Array  # [S], proportional to p_m
    total_weight: float  # sum of the weights of all clients, including those not in the cohort
    mean_steps: float  # weighted mean of K_m over all clients; the expectation if K is drawn
    normalize: bool = True  # True: messages are divided by their client's K_m
    min_steps: float = 1.0  # minimum of K_m over all clients
    seed: int = 0  # with round and client, determines the random numbers of messages
    round: int = 0  # index of the round, from 0
    fraction_bits: int | None = None  # of fixed-point sums (fixed_point.py); None: floating-point sums

    @cached_property
    def steps(self) -> Array:
        """Number of local steps K_m of every client: [S]."""
        return self.first[1:] - self.first[:-1]

    def append_average(self, vectors: Array) -> Array:
        """Return the clients' vectors [S, J, P], followed by their weighted mean: [S + 1, J, P]."""
        average = np.average(vectors, axis=0, weights=self.weights)
        return np.concatenate([vectors, average[None].astype(vectors.dtype)])


class BufferPool(dict[int, Buffers]):
    """Message and memory buffers by number of clients, reused in all rounds.

    Allocation in every round would take as long as the local steps. `shape` is (J, P).
    """

    def __init__(self, sent: int, kept: int, shape: tuple[int, int], dtype: np.dtype) -> None:
        super().__init__()
        self.counts, self.shape, self.dtype = (sent, kept), shape, dtype

    def new(self, clients: int) -> Buffers:
        """Return new buffers that are not shared with other rounds."""
        messages, memory = (np.empty((clients, count, *self.shape), self.dtype) for count in self.counts)
        return messages, memory

    def __missing__(self, clients: int) -> Buffers:
        self[clients] = self.new(clients)
        return self[clients]


class Round(NamedTuple):
    """Result of one round."""

    state: State
    dropped: Array  # [J], number of messages that were not finite and therefore ignored
    messages: Array | None = None  # [S, sent, J, P]; overwritten by the next round
    memory: Array | None = None  # [S, client_arrays, J, P], new memory of the cohort; overwritten by the next round
    arrived: Array | None = None  # [S, J], True if the message was finite; otherwise the client's memory is not updated


class Costs(NamedTuple):
    """Costs of one round: communication, prox calls and row gradients."""

    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int | Array = 0  # [J] if the message size differs between jobs
    bytes_down: int = 0
    prox_calls: int = 0
    gradients: int = 0
