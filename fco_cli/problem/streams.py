"""Random numbers as a function of (seed, stream, index, ...): no generator state is ever kept."""

from __future__ import annotations

import numpy as np

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.layout import Array

TRUTH, MEANS, TRAINING, VALIDATION, MODEL, COHORTS, PROBES, SHUFFLES, COIN, MESSAGES, NOISE, FOLDS = range(12)


def generator(seed: int, stream: int, index: int = 0) -> np.random.Generator:
    """A counter-based generator; one stream per purpose, one index per round or client."""
    key = np.array([seed, (stream << 48) + index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class Stream:
    """`generator(seed, stream, index)` for one index after another, each to be used before the next is asked for.

    It is one generator that is set back: to make one takes longer than to draw a cohort.
    """

    def __init__(self, seed: int, stream: int) -> None:
        self._random, self._first = generator(seed, stream), stream << 48
        self._start = self._random.bit_generator.state

    def at(self, index: int) -> np.random.Generator:
        self._start["state"]["key"][1] = self._first + index
        self._random.bit_generator.state = self._start
        return self._random


# A cohort shuffles the rows of many clients, each by its own key: a generator object for every client would cost more
# than the shuffle. SplitMix64 (Steele, Lea and Flood, 2014) needs a key and a counter only.

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
B11, B27, B30, B31, B32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))


@kernel
def mixed(bits):
    """SplitMix64's output function: every bit of the result depends on every bit of the argument."""
    bits = (bits ^ (bits >> B30)) * FIRST_FACTOR
    bits = (bits ^ (bits >> B27)) * SECOND_FACTOR
    return bits ^ (bits >> B31)


@kernel
def subkey(key, index):
    """The key of the index-th child of a key."""
    return mixed(mixed(key) + GOLDEN * (np.uint64(index) + np.uint64(1)))


@kernel
def uniform(key, index):
    """The index-th number of a key: from 0 to below 1."""
    return (mixed(key + GOLDEN * (np.uint64(index) + np.uint64(1))) >> B11) * 2.0**-53


@kernel
def shuffle(key, rows):
    """Permute `rows` in place (Fisher and Yates), by the numbers mixed(key + GOLDEN), mixed(key + 2 GOLDEN), ..."""
    for i in range(rows.shape[0] - 1, 0, -1):
        key += GOLDEN
        k = np.int64(((mixed(key) >> B32) * np.uint64(i + 1)) >> B32)
        rows[i], rows[k] = rows[k], rows[i]


@kernel
def draw_batches(seed, round_index, clients, sizes, used, uncut, batch_size, steps, order, edges, first):
    """Every client's rows in a fresh order for every epoch, and where its steps[i] batches begin and end.

    Of an epoch it uses the first used[i] rows, and a batch ends after every uncut[i] of all these. A function of (seed,
    round, client): `clients` may be the whole cohort or one client, with the same result for it.
    """
    round_key = subkey(subkey(np.uint64(seed), SHUFFLES), round_index)
    at, batch = 0, 0
    for i in range(clients.shape[0]):
        key, size, start = subkey(round_key, clients[i]), sizes[i], at
        first[i] = batch
        in_uncut = -(-uncut[i] // batch_size)
        for b in range(steps[i]):
            edges[batch] = start + b // in_uncut * uncut[i] + b % in_uncut * batch_size
            batch += 1
        at = edges[batch - 1] + min(batch_size, uncut[i] - (steps[i] - 1) % in_uncut * batch_size)
        for epoch in range(-(-(at - start) // used[i])):
            begin = start + epoch * used[i]
            rows = order[begin : begin + size]  # what is not used gives way to what comes next
            for row in range(size):
                rows[row] = row
            shuffle(subkey(key, epoch), rows)
    edges[batch] = at
    first[clients.shape[0]] = batch


# What becomes of the rows that are left of an epoch when no whole batch can be made of them: a smaller batch, nothing,
# or a whole one together with the next epoch's. A client with fewer rows than a batch keeps them in any case.
LAST_BATCHES = ("keep", "drop", "straddle")


def used_rows(sizes: Array, batch_size: int, last_batch: str) -> Array:
    """How many of its rows a client goes through in an epoch."""
    return np.where(sizes < batch_size, sizes, sizes // batch_size * batch_size) if last_batch == "drop" else sizes


def local_steps_of(sizes: Array, batch_size: int, epochs: int, last_batch: str = "keep") -> Array:
    """K: how many batches so many epochs make of every client's rows."""
    if last_batch == "straddle":
        return -(-sizes * epochs // batch_size)
    return -(-used_rows(sizes, batch_size, last_batch) // batch_size) * epochs


@kernel
def draw_keys(seed, round_index, clients, keys):
    round_key = subkey(subkey(np.uint64(seed), MESSAGES), round_index)
    for i in range(clients.shape[0]):
        keys[i] = subkey(round_key, clients[i])


def batches_of(
    seed: int, round_index: int, clients: Array, sizes: Array, batch_size: int, epochs: int, last_batch: str = "keep",
    steps: int | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """order, edges, first: batch b is the rows order[edges[b]:edges[b+1]] of its client, who counts its own from 0;
    client i has the batches first[i] to first[i+1].

    With `steps` every client has so many batches, of as many epochs as that takes.
    """
    used = uncut = used_rows(sizes, batch_size, last_batch)
    if steps is None:
        each, all_rows = local_steps_of(sizes, batch_size, epochs, last_batch), sizes * epochs
    else:
        each, all_rows = (np.full(len(sizes), many, dtype=np.int64) for many in (steps, steps * batch_size))
    if last_batch == "straddle":
        uncut = all_rows
    room = -(-each // -(-uncut // batch_size)) * uncut
    order = np.empty(int(room.sum() + sizes.max()), dtype=np.int64)
    edges, first = np.empty(int(each.sum()) + 1, dtype=np.int64), np.empty(len(clients) + 1, dtype=np.int64)
    draw_batches(seed, round_index, clients, sizes, used, uncut, batch_size, each, order, edges, first)
    return order[: edges[-1]], edges, first


def message_keys(seed: int, round_index: int, clients: Array) -> Array:
    """What is random in the messages of a round is drawn from these, one for every client: [S]."""
    keys = np.empty(len(clients), dtype=np.uint64)
    draw_keys(seed, round_index, clients, keys)
    return keys
