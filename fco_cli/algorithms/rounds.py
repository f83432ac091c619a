"""What a round is made of: the jobs' numbers, the clients that take part, what came of it and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import HasNumbers, Numbers, stack_numbers

State = dict[str, Array]  # names -> arrays with J first
Memory = Iterable[Array]  # what each of some clients keeps between rounds: [kept, J, P]
Room = tuple[Array, Array]  # for messages [S, sent, J, P] and for memory [S, kept, J, P]

# How many local steps clients take in a round: their own epochs', for all alike the mean of those (rounded), or for all
# alike a number drawn anew in every round, geometrically with that mean.
Pace = Literal["epochs", "alike", "coin"]


@dataclass(frozen=True)
class Varying:
    """The numbers that may differ from job to job along the axis J."""

    client_lr: Array  # [J], eta_c
    server_lr: Array  # [J], eta_s
    psi: Numbers  # [J], a record of the regularizer's numbers for every job
    options: Numbers  # [J], a record of the algorithm's own
    transform: Numbers | None = None  # [J], a record of its transform's; none: the same for all jobs

    @classmethod
    def in_rates(cls, algorithm: HasNumbers, psi: HasNumbers, client_lr: Array, server_lr: Array) -> Varying:
        """Jobs that differ in their learning rates only."""
        jobs = len(client_lr)
        return cls(client_lr, server_lr, stack_numbers([psi] * jobs), stack_numbers([algorithm] * jobs))

    def __len__(self) -> int:
        return len(self.client_lr)

    def take(self, keep: Array) -> Varying:
        transform = None if self.transform is None else self.transform[keep]
        return Varying(self.client_lr[keep], self.server_lr[keep], self.psi[keep], self.options[keep], transform)


@dataclass(frozen=True)
class Cohort:
    """The clients of one round: who takes part, in which order they see their rows, what they weigh."""

    clients: Array  # [S]
    order: Array  # rows, counted by every client from its own first; the clients' epochs one after another
    edges: Array  # batch b is order[edges[b]:edges[b + 1]]
    first: Array  # [S + 1]; client i has the batches first[i] to first[i + 1]
    weights: Array  # [S], in proportion to p_m
    all_weights: float  # the sum over all clients, those that do not take part included
    mean_steps: float  # the weighted mean of K over all clients; where it is drawn, the mean over rounds
    normalize: bool = True  # whether the mean of messages divides each by its client's K
    least_steps: float = 1.0  # the least K of all clients
    seed: int = 0  # what is random in the messages is a function of seed, round and client
    round: int = 0  # which one, counted from 0
    fraction_bits: int | None = None  # of a sum in fixed point (fixed_point.py); none: numbers are added as they are

    @cached_property
    def steps(self) -> Array:
        """K of every client: [S]."""
        return self.first[1:] - self.first[:-1]


class Rooms(dict[int, Room]):
    """Room for what so many clients send and keep, the same in all rounds: fresh memory takes as long as local steps.

    Every array is of `vectors`, [J, P].
    """

    def __init__(self, sent: int, kept: int, vectors: tuple[int, int], dtype: np.dtype) -> None:
        super().__init__()
        self.counts, self.vectors, self.dtype = (sent, kept), vectors, dtype

    def new(self, clients: int) -> Room:
        """For one round."""
        messages, memory = (np.empty((clients, count, *self.vectors), self.dtype) for count in self.counts)
        return messages, memory

    def __missing__(self, clients: int) -> Room:
        self[clients] = self.new(clients)
        return self[clients]


class Round(NamedTuple):
    """What one round did."""

    state: State
    dropped: Array  # [J], how many clients' messages were not finite and so weighed nothing
    messages: Array | None = None  # [S, sent, J, P], until the next round
    memory: Array | None = None  # [S, kept, J, P], what the cohort's clients keep after it, until the next round
    arrived: Array | None = None  # [S, J], whose message was finite; the memory of the others stays as it was


class Costs(NamedTuple):
    """Of one round: what travels, how often prox is applied, and at how many rows the loss's gradient is taken."""

    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int | Array = 0  # [J] where the jobs' messages differ in size
    bytes_down: int = 0
    prox_calls: int = 0
    gradients: int = 0


def and_average(vectors: Array, cohort: Cohort) -> Array:
    """Vectors [S, J, P] of the cohort's clients, and in the last place their weighted mean: [S + 1, J, P]."""
    average = np.average(vectors, axis=0, weights=cohort.weights)
    return np.concatenate([vectors, average[None].astype(vectors.dtype)])
