"""Random numbers as a function of (seed, stream, index, ...): no generator state is ever kept."""

from __future__ import annotations

import numpy as np

from fco_cli.problem.compiled import kernel
from fco_cli.problem.layout import Array

TRUTH, MEANS, TRAINING, VALIDATION, MODEL, COHORTS, PROBES, SHUFFLES, COIN, FOLDS = range(10)


def generator(seed: int, stream: int, index: int = 0) -> np.random.Generator:
    """A counter-based generator; one stream per purpose, one index per round or client."""
    key = np.array([seed, (stream << 48) + index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


# A cohort shuffles the rows of many clients, each by its own key: a generator object for every client would cost more
# than the shuffle. SplitMix64 (Steele, Lea and Flood, 2014) needs a key and a counter only.

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
B27, B30, B31, B32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


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
def shuffle(key, rows):
    """Permute `rows` in place (Fisher and Yates), by the numbers mixed(key + GOLDEN), mixed(key + 2 GOLDEN), ..."""
    for i in range(rows.shape[0] - 1, 0, -1):
        key += GOLDEN
        k = np.int64(((mixed(key) >> B32) * np.uint64(i + 1)) >> B32)
        rows[i], rows[k] = rows[k], rows[i]


@kernel
def draw_batches(seed, round_index, clients, sizes, batch_size, steps, order, edges, first):
    """Every client's rows in a fresh order for every epoch, and where its steps[i] batches begin and end.

    A function of (seed, round, client): `clients` may be the whole cohort or one client, with the same result for it.
    """
    round_key = subkey(subkey(np.uint64(seed), SHUFFLES), round_index)
    at, batch = 0, 0
    for i in range(clients.shape[0]):
        key, size = subkey(round_key, clients[i]), sizes[i]
        first[i] = batch
        in_epoch = -(-size // batch_size)
        for epoch in range(-(-steps[i] // in_epoch)):
            rows = order[at : at + size]
            for row in range(size):
                rows[row] = row
            shuffle(subkey(key, epoch), rows)
            taken = min(in_epoch, steps[i] - epoch * in_epoch)  # the last epoch may end before its rows do
            for b in range(taken):
                edges[batch] = at + b * batch_size
                batch += 1
            at += min(size, taken * batch_size)
    edges[batch] = at
    first[clients.shape[0]] = batch


def batches_of(
    seed: int, round_index: int, clients: Array, sizes: Array, batch_size: int, epochs: int, steps: int | None = None
) -> tuple[Array, Array, Array]:
    """order, edges, first: batch b is the rows order[edges[b]:edges[b+1]] of its client, who counts its own from 0;
    client i has the batches first[i] to first[i+1]. The last, partial batch of an epoch is kept.

    With `steps` every client has so many batches, of as many epochs as that takes.
    """
    in_epoch = -(-sizes // batch_size)
    each = in_epoch * epochs if steps is None else np.full(len(sizes), steps, dtype=np.int64)
    order = np.empty(int((-(-each // in_epoch) * sizes).sum()), dtype=np.int64)
    edges, first = np.empty(int(each.sum()) + 1, dtype=np.int64), np.empty(len(clients) + 1, dtype=np.int64)
    draw_batches(seed, round_index, clients, sizes, batch_size, each, order, edges, first)
    return order[: edges[-1]], edges, first
