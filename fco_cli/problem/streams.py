"""Stateless random numbers: functions of (seed, stream, index, ...)."""

from __future__ import annotations

import secrets

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array

TRUTH, MEANS, TRAINING, VALIDATION, MODEL, COHORTS, PROBES, SHUFFLES, COIN, MESSAGES, NOISE, FOLDS, SAMPLES = range(13)
ROWS, COLUMNS, GRAPHS = range(13, 16)
DROPOUTS, SPEEDS, JITTER, DISPATCHES = range(20, 24)


def generator(seed: int, stream: int, index: int = 0) -> np.random.Generator:
    """Return a counter-based generator; there is one stream per purpose and one index per round or client."""
    key = np.array([seed, (stream << 48) + index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class Stream:
    """Reusable `generator(seed, stream, index)`; a generator is valid until the next call of `at`.

    One generator object is reset for every index, because creating one takes longer than drawing a cohort.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self._random, self._first = generator(seed, stream), stream << 48
        self._start = self._random.bit_generator.state

    def at(self, index: int) -> np.random.Generator:
        self._start["state"]["key"][1] = self._first + index
        self._random.bit_generator.state = self._start
        return self._random


# The rows of each client in a cohort are shuffled with the client's own key. Creating a generator object per client
# would take longer than the shuffle; SplitMix64 (Steele, Lea and Flood, 2014) needs only a key and a counter.

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
B11, B27, B30, B31, B32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))


@kernel
def mixed(bits):
    """Apply the output function of SplitMix64: every bit of the result depends on every bit of the argument."""
    bits = (bits ^ (bits >> B30)) * FIRST_FACTOR
    bits = (bits ^ (bits >> B27)) * SECOND_FACTOR
    return bits ^ (bits >> B31)


@kernel
def subkey(key, index):
    """Return the index-th child key of a key."""
    return mixed(mixed(key) + GOLDEN * (np.uint64(index) + np.uint64(1)))


@kernel
def uniform(key, index):
    """Return the index-th uniform random number of a key, in [0, 1)."""
    return (mixed(key + GOLDEN * (np.uint64(index) + np.uint64(1))) >> B11) * 2.0**-53


@kernel
def shuffle(key, rows):
    """Permute `rows` in place (Fisher and Yates) by the numbers mixed(key + GOLDEN), mixed(key + 2 GOLDEN), ..."""
    for i in range(rows.shape[0] - 1, 0, -1):
        key += GOLDEN
        k = np.int64(((mixed(key) >> B32) * np.uint64(i + 1)) >> B32)
        rows[i], rows[k] = rows[k], rows[i]


@kernel
def draw_batches(seed, round_index, clients, sizes, used, period, batch_size, steps, order, edges, first):
    """Draw the row order of every client and epoch, and the edges of its steps[i] batches.

    An epoch uses the first used[i] shuffled rows. Batches do not cross multiples of period[i] in the sequence of used
    rows. The result for a client depends on (seed, round, client) only, not on the other clients in `clients`.
    """
    round_key = subkey(subkey(np.uint64(seed), SHUFFLES), round_index)
    at, batch = 0, 0
    for i in range(clients.shape[0]):
        key, size, start = subkey(round_key, clients[i]), sizes[i], at
        first[i] = batch
        batches_per_period = -(-period[i] // batch_size)
        for b in range(steps[i]):
            edges[batch] = start + b // batches_per_period * period[i] + b % batches_per_period * batch_size
            batch += 1
        at = edges[batch - 1] + min(batch_size, period[i] - (steps[i] - 1) % batches_per_period * batch_size)
        for epoch in range(-(-(at - start) // used[i])):
            begin = start + epoch * used[i]
            rows = order[begin : begin + size]  # unused rows are overwritten by the next epoch
            for row in range(size):
                rows[row] = row
            shuffle(subkey(key, epoch), rows)
    edges[batch] = at
    first[clients.shape[0]] = batch


# Rows at the end of an epoch that do not fill a batch: make a smaller batch, drop them, or fill the batch with rows of
# the next epoch. A client with fewer rows than a batch always keeps them.
LAST_BATCHES = ("keep", "drop", "straddle")


def used_rows(sizes: Array, batch_size: int, last_batch: str) -> Array:
    """Return the number of rows that each client uses in an epoch."""
    return np.where(sizes < batch_size, sizes, sizes // batch_size * batch_size) if last_batch == "drop" else sizes


def local_steps_of(sizes: Array, batch_size: int, epochs: int, last_batch: str = "keep") -> Array:
    """Return K, the number of batches of each client in `epochs` epochs."""
    if last_batch == "straddle":
        return -(-sizes * epochs // batch_size)
    return -(-used_rows(sizes, batch_size, last_batch) // batch_size) * epochs


@kernel
def draw_keys(seed, stream, round_index, clients, keys):
    """Compute the key of every client for its randomness of one purpose in a round."""
    round_key = subkey(subkey(np.uint64(seed), stream), round_index)
    for i in range(clients.shape[0]):
        keys[i] = subkey(round_key, clients[i])


def batches_of(
    seed: int, round_index: int, clients: Array, sizes: Array, batch_size: int, epochs: int, last_batch: str = "keep",
    steps: int | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return (order, edges, first): client i has the batches first[i] to first[i+1].

    Batch b consists of its client's rows order[edges[b]:edges[b+1]], numbered from 0 within the client. If `steps` is
    given, every client has that many batches, over as many epochs as needed.
    """
    used = period = used_rows(sizes, batch_size, last_batch)
    if steps is None:
        each, all_rows = local_steps_of(sizes, batch_size, epochs, last_batch), sizes * epochs
    else:
        each, all_rows = (np.full(len(sizes), count, dtype=np.int64) for count in (steps, steps * batch_size))
    if last_batch == "straddle":
        period = all_rows
    capacity = -(-each // -(-period // batch_size)) * period
    order = np.empty(int(capacity.sum() + sizes.max()), dtype=np.int64)
    edges, first = np.empty(int(each.sum()) + 1, dtype=np.int64), np.empty(len(clients) + 1, dtype=np.int64)
    draw_batches(seed, round_index, clients, sizes, used, period, batch_size, each, order, edges, first)
    return order[: edges[-1]], edges, first


@kernel
def draw_samples(keys, sizes, batch_size, steps, order, edges, first):
    """Draw the rows of every client and step independently of each other, with probability batch_size / size.

    Fills `edges` and `first`; the rows are written to `order` as far as it has space.
    """
    at, batch = 0, 0
    for i in range(keys.shape[0]):
        first[i] = batch
        share = min(1.0, batch_size / sizes[i])
        for k in range(steps[i]):
            edges[batch], key = at, subkey(keys[i], k)
            batch += 1
            for row in range(sizes[i]):
                if uniform(key, row) < share:
                    if at < order.shape[0]:
                        order[at] = row
                    at += 1
    edges[batch] = at
    first[keys.shape[0]] = batch


def sampled_batches(
    seed: int, round_index: int, clients: Array, sizes: Array, batch_size: int, steps: Array
) -> tuple[Array, Array, Array]:
    """Return (order, edges, first) as `batches_of` does, for Poisson samples of the rows.

    Client i has steps[i] batches. Each contains every row with probability batch_size / size, at most 1, independently
    of other rows and steps, so that a batch has batch_size rows on average and may be empty.
    """
    keys = client_keys(seed, SAMPLES, round_index, clients)
    edges, first = np.empty(int(steps.sum()) + 1, dtype=np.int64), np.empty(len(clients) + 1, dtype=np.int64)
    draw_samples(keys, sizes, batch_size, steps, np.empty(0, np.int64), edges, first)
    order = np.empty(int(edges[-1]), dtype=np.int64)
    draw_samples(keys, sizes, batch_size, steps, order, edges, first)
    return order, edges, first


def client_keys(seed: int, stream: int, round_index: int, clients: Array) -> Array:
    """Return the keys for the clients' randomness of one purpose in a round: [S]."""
    keys = np.empty(len(clients), dtype=np.uint64)
    draw_keys(seed, stream, round_index, clients, keys)
    return keys


def message_keys(seed: int, round_index: int, clients: Array) -> Array:
    """Return the keys for the randomness in the messages of a round, one per client: [S]."""
    return client_keys(seed, MESSAGES, round_index, clients)


def row_noise(seed: int, round_index: int, client: int, vectors: int, size: int) -> Array:
    """Return the standard normal numbers [vectors, size] of a client for its sums over rows in a round.

    Vector n does not depend on the number of vectors.
    """
    (key,) = client_keys(seed, ROWS, round_index, np.array([client]))
    random = np.random.Generator(np.random.Philox(key=np.array([key, ROWS << 48], dtype=np.uint64)))
    return random.standard_normal((vectors, size))


def secret_noise(vectors: int, jobs: int, size: int) -> Array:
    """Return standard normal numbers [vectors, jobs, size] from the operating system's secure generator.

    By the method of Box and Muller: a generator with a recoverable state would disclose all noise to a reader of a
    part of it.
    """
    count = -(-vectors * jobs * size // 2)
    bits = np.frombuffer(secrets.token_bytes(16 * count), dtype=np.uint64).reshape(2, count) >> B11
    radius = np.sqrt(-2 * np.log((bits[0] + 1) * 2.0**-53))
    angle = 2 * np.pi * (bits[1] * 2.0**-53)
    numbers = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return numbers[: vectors * jobs * size].reshape(vectors, jobs, size)
