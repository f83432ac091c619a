"""Parallel loop over the clients of a cohort."""

from __future__ import annotations

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import Batches, steps_of

prange = range  # Numba's parallel range in the compiled kernel


def local_steps(received, memory, message, rate, options, batches, geometry):  # placeholders, bound by `specialize`
    raise NotImplementedError


def remember(received, memory, message, rate, options, steps):
    raise NotImplementedError


def part(x, low, high):
    raise NotImplementedError


def encode(message, residual, numbers, key):
    raise NotImplementedError


def memory_of(stack, i):
    raise NotImplementedError


def message_of(stack, i):
    raise NotImplementedError


@kernel
def keep_memory(received, memory, message, rate, options, steps):
    """Default `remember`: no memory update after the transform."""


@kernel
def run_clients(
    received, memory, messages, rate, options, x, y, offsets, clients, order, edges, first, widths, geometry,
    numbers, keys, remembered,
):  # fmt: skip
    """Run the local steps, the transform and the memory update of every client of the cohort.

    Fills messages [S, sent, J, P] and updates memory [S, client_arrays, J, P] in place. In a client's memory the first
    `remembered` arrays belong to the algorithm, the others to the transform.
    """
    for i in prange(clients.shape[0]):
        low, high = offsets[clients[i]], offsets[clients[i] + 1]
        batches = Batches(part(x, low, high), y[low:high], order, edges[first[i] : first[i + 1] + 1], widths)
        own, message = memory_of(memory, i), message_of(messages, i)
        local_steps(received, own, message, rate, options, batches, geometry)
        encode(messages[i], memory[i, remembered:], numbers, keys[i])
        remember(received, own, message, rate, options, steps_of(batches))
