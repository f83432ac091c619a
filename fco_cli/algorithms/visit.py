"""One client after another, or several at a time: the loop around an algorithm's local steps."""

from __future__ import annotations

from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import Batches, steps_of

prange = range  # Numba's parallel range in the compiled kernel


def local_steps(received, memory, message, rate, options, batches, geometry):  # bound by `specialize`, as the next ones
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
def nothing_more(received, memory, message, rate, options, steps):
    """`remember` of a method whose local steps change the memory themselves, or that has none."""


@kernel
def visit(
    received, memory, messages, rate, options, x, y, offsets, clients, order, edges, first, widths, geometry,
    numbers, keys, own_rows,
):  # fmt: skip
    """Every client of the cohort takes its local steps from the broadcast, on its own rows.

    It changes its memory [S, kept, J, P], whose first `own_rows` are the algorithm's and the others the transform's,
    and leaves in messages [S, sent, J, P] what arrives of its message.
    """
    for i in prange(clients.shape[0]):
        low, high = offsets[clients[i]], offsets[clients[i] + 1]
        batches = Batches(part(x, low, high), y[low:high], order, edges[first[i] : first[i + 1] + 1], widths)
        own, message = memory_of(memory, i), message_of(messages, i)
        local_steps(received, own, message, rate, options, batches, geometry)
        encode(messages[i], memory[i, own_rows:], numbers, keys[i])
        remember(received, own, message, rate, options, steps_of(batches))
