"""Data of a round: parameters of the jobs, the cohort, aggregates, result and costs.

Messages are aggregated in floating point, or in 64-bit fixed point: integer multiples of 2^-bits. Fixed-point sums are
exact modulo 2^64 and independent of the order of summation. Secure aggregation requires this: masks that cancel
(fco_cli/federation/masks.py) leave every bit of the sum unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from fco_cli.algorithms.arrays import Vector, by_job
from fco_cli.kernels.compiled import is_finite, kernel, specialize
from fco_cli.problem.layout import Array, HasNumbers, Numbers, stack_numbers

State = dict[str, Array]  # arrays by name; the first axis is J
Memory = Iterable[Array]  # stored arrays [slots, J, P] of each client

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


class Batches(NamedTuple):
    """Rows of the clients' batches, as in `Cohort`."""

    order: Array
    edges: Array
    first: Array


def joined_batches(parts: Sequence[Batches]) -> Batches:
    """Return the batches of several groups of clients as those of one group."""
    rows = np.cumsum([0, *(len(part.order) for part in parts)])
    batches = np.cumsum([0, *(part.first[-1] for part in parts)])
    edges = [part.edges[:-1] + start for part, start in zip(parts, rows[:-1], strict=True)]
    first = [part.first[:-1] + start for part, start in zip(parts, batches[:-1], strict=True)]
    order = np.concatenate([part.order for part in parts])
    return Batches(order, np.append(np.concatenate(edges), rows[-1]), np.append(np.concatenate(first), batches[-1]))


class StaleStarts(NamedTuple):
    """States from which the clients of a buffer started."""

    versions: Array  # [S], number of updates before the client's start
    parts: tuple[Batches, ...]  # batches of each client
    keys: Array  # [S], `message_keys` of each client
    kept: frozenset[int]  # versions from which clients still compute after this update


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
    fraction_bits: int | None = None  # of fixed-point sums; None: floating-point sums
    absent: Array | None = None  # [S], True for clients whose message does not arrive; None: all arrive
    batch_size: int = 0  # expected number of rows in a sampled batch; 0: batches are not samples
    invited: int | None = None  # number of clients that received the model; None: the S clients
    stale: StaleStarts | None = None  # None: all clients start from the current state
    scale: float = 1.0  # factor of the means of the messages and of the number of steps in them

    @cached_property
    def steps(self) -> Array:
        """Number of local steps K_m of every client: [S]."""
        return self.first[1:] - self.first[:-1]

    def append_average(self, vectors: Array) -> Array:
        """Return the clients' vectors [S, J, P], followed by their weighted mean: [S + 1, J, P]."""
        average = np.average(vectors, axis=0, weights=self.weights)
        return np.concatenate([vectors, average[None].astype(vectors.dtype)])


class Participation(NamedTuple):
    """Participation of all clients in the rounds so far."""

    rounds: Array  # [M], rounds in which the client took part
    steps: Array  # [M], its local steps
    sampling: Array  # [M], probability that a batch contains a given row of the client
    preparation_noise: float | None = None  # noise multiplier of statistics of all rows, released before; None: none


class Round(NamedTuple):
    """Result of one round."""

    state: State
    dropped: Array  # [J], number of messages that were not finite and therefore ignored
    messages: Array | None = None  # [S, slots, J, P]; overwritten by the next round
    memory: Array | None = None  # [S, slots, J, P], new memory of the cohort; overwritten by the next round
    arrived: Array | None = None  # [S, J], True if the message was finite; otherwise the client's memory is not updated
    missing: tuple[str, ...] = ()  # names of the clients without a response


class Costs(NamedTuple):
    """Costs of one round: communication, prox calls, row gradients and answered queries.

    A query is one request about the rows of a client that the client answers: for the message of a round, or for an
    evaluation that the method itself needs. Evaluations for metrics are not counted.
    """

    vectors_up: int = 0
    vectors_down: int = 0
    bytes_up: int | Array = 0  # [J] if the message size differs between jobs
    bytes_down: int = 0
    prox_calls: int = 0
    gradients: int = 0
    queries: int = 0


prange = range  # Numba's parallel range in the compiled kernel


@dataclass(frozen=True)
class Aggregates:
    """Aggregates over the clients with a finite message; NaN for jobs without any."""

    mean: dict[
        str, Array
    ]  # weighted means by name: Vector [J, P], Matrix [J, P, P], Symmetric [J, slots, P], Scalar [J]
    steps: Array  # [J], effective number of gradient steps in the mean
    share: Array  # [J], sum of p_m over these clients; 1 with full participation
    dropped: Array  # [J], number of messages that were not finite

    def scaled(self, factor: float) -> Aggregates:
        """Return the aggregates with means and steps times a factor."""
        mean = {name: (factor * values).astype(values.dtype) for name, values in self.mean.items()}
        return replace(self, mean=mean, steps=factor * self.steps)

    def sum(self, name: str) -> Array:
        """Return sum_m p_m message_m [J, P], with weights p_m that sum to 1 over all clients."""
        mean = self.mean[name]
        return self.share.astype(mean.dtype).reshape(-1, *[1] * (mean.ndim - 1)) * mean


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
def add_job(j, messages, weights, step_normalization, steps, arrived, dropped, total, taken, mean):
    """Add the finite messages of all clients in job j to the sums; see `weighted_mean`."""
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


@kernel
def divide_job(j, total, taken, mean):
    """Divide the sums of job j by the total weight."""
    taken[j] /= total[j]
    for n in range(mean.shape[0]):
        result = mean[n, j]
        scale = result.dtype.type(1 / total[j] if total[j] > 0 else np.nan)
        for k in range(result.shape[0]):
            result[k] *= scale


@kernel
def weighted_mean(messages, weights, step_normalization, steps, arrived, dropped, total, taken, mean):
    """Compute mean [slots, J, P], the weighted mean of step_normalization[i, j] * messages[i] over finite messages.

    Also sets arrived [S, J], the number of other messages dropped [J], the total weight [J] and the mean number of
    steps taken [J]. Sums run over the clients in order.
    """
    for j in prange(mean.shape[1]):
        total[j] = taken[j] = dropped[j] = 0
        for n in range(mean.shape[0]):
            for k in range(mean.shape[2]):
                mean[n, j, k] = 0
        add_job(j, messages, weights, step_normalization, steps, arrived, dropped, total, taken, mean)
        divide_job(j, total, taken, mean)


@kernel
def add_messages(messages, weights, step_normalization, steps, arrived, dropped, total, taken, sums):
    """Add messages to the sums of a `weighted_mean` that is computed for a group of clients at a time."""
    for j in prange(sums.shape[1]):
        add_job(j, messages, weights, step_normalization, steps, arrived, dropped, total, taken, sums)


@kernel
def divide_sums(total, taken, mean):
    """Divide the sums of a `weighted_mean` by the total weight."""
    for j in prange(mean.shape[1]):
        divide_job(j, total, taken, mean)


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


def aggregate(messages: Array, sent: tuple[Vector, ...], weights: MessageWeights) -> tuple[Aggregates, Array]:
    """Return the aggregates of messages [S, slots, J, P], and which messages are finite: [S, J]."""
    slots, jobs, size = messages.shape[1:]
    arrived = np.empty((len(messages), jobs), dtype=bool)
    dropped, total, taken = np.empty(jobs, np.int64), np.empty(jobs), np.empty(jobs)
    mean = np.empty((slots, jobs, size), messages.dtype)
    compiled_mean = specialize(weighted_mean, parallel=True)
    factors = weights.step_normalization
    compiled_mean(messages, weights.weights, factors, weights.steps, arrived, dropped, total, taken, mean)
    taken = weights.mean_effective_steps(taken, total > 0)
    return Aggregates(by_job(sent, mean), taken, total / weights.total_weight, dropped), arrived


class RunningMean:
    """Weighted mean of messages that arrive by group of clients, with some columns each; see `weighted_mean`."""

    def __init__(self, weights: MessageWeights, shape: tuple[int, int, int], dtype: np.dtype) -> None:
        jobs = shape[1]
        self.weights, self.factors = weights, weights.step_normalization
        self.sums, self.arrived = np.zeros(shape, dtype), np.empty((len(weights.weights), jobs), dtype=bool)
        self.dropped, self.total, self.taken = np.zeros(jobs, np.int64), np.zeros(jobs), np.zeros(jobs)

    def add(self, messages: Array, group: slice, places: Array) -> None:
        """Add the messages [n, slots, J, P'] of a group of clients; all other columns than `places` [P'] are zero."""
        own, sums = self.weights, np.ascontiguousarray(self.sums[:, :, places])
        specialize(add_messages, parallel=True)(
            messages, own.weights[group], self.factors[group], own.steps[group], self.arrived[group],
            self.dropped, self.total, self.taken, sums,
        )  # fmt: skip
        self.sums[:, :, places] = sums

    def aggregates(self, sent: tuple[Vector, ...]) -> Aggregates:
        """Return the aggregates of all messages."""
        specialize(divide_sums, parallel=True)(self.total, self.taken, self.sums)
        taken = self.weights.mean_effective_steps(self.taken, self.total > 0)
        return Aggregates(by_job(sent, self.sums), taken, self.total / self.weights.total_weight, self.dropped)


def fixed_point_sum(messages: Array, factors: Array, bits: int, absent: Array | None = None) -> tuple[Array, Array]:
    """Return the fixed-point sum [slots, J, P] of messages [S, slots, J, P] times factors [S, J].

    Also returns which messages are in the sum: [S, J]. Those of absent clients [S] are not, and none is in a job with a
    number out of range: which client sent it would disclose something about its rows.
    """
    total, arrived = np.zeros(messages.shape[1:], np.int64), np.zeros(factors.shape, dtype=bool)
    fits = np.ones(factors.shape[1], dtype=bool)
    for i, (message, factor) in enumerate(zip(messages, factors, strict=True)):
        if absent is None or not absent[i]:
            scaled = {"all": np.swapaxes(factor[:, None] * message.astype(float), 0, 1)}  # the job axis first
            integers, in_range = to_fixed_point(scaled, bits, len(messages))
            total += np.swapaxes(integers["all"], 0, 1)
            arrived[i], fits = True, fits & in_range
    return total, arrived & fits


def aggregate_sum(
    total: Array, bits: int, sent: tuple[Vector, ...], weights: MessageWeights, arrived: Array, dtype: np.dtype
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
    return Aggregates(by_job(sent, mean), taken, share, (~arrived).sum(axis=0))


MAX_FRACTION_BITS = 52  # maximum number of fraction bits


def to_fixed_point(arrays: dict[str, Array], bits: int, clients: int) -> tuple[dict[str, Array], Array]:
    """Return one client's arrays [J, ...] as int64, and in which jobs they are within range: [J].

    Values are within range if the sum over all clients cannot exceed 2^62. In other jobs the result is 0. An array may
    be that of the first jobs only.
    """
    scaled = {name: np.ldexp(np.asarray(values, float), bits) for name, values in arrays.items()}
    fits = np.ones(max(map(len, scaled.values())), dtype=bool)
    with np.errstate(invalid="ignore"):
        for values in scaled.values():  # NaN compares as False
            in_range = np.abs(values).reshape(len(values), -1) <= 2.0**62 / clients
            fits[: len(values)] &= in_range.all(axis=1)
    integers = {
        name: np.rint(np.where(fits[: len(values)].reshape(-1, *[1] * (values.ndim - 1)), values, 0)).astype(np.int64)
        for name, values in scaled.items()
    }
    return integers, fits


def from_fixed_point(total: Array, bits: int) -> Array:
    """Return a fixed-point sum (int64) in floating point."""
    return np.ldexp(total.astype(float), -bits)
