"""One client after another, or several at a time: the loop around an algorithm's local steps."""

from __future__ import annotations

from fco_cli.problem.compiled import kernel
from fco_cli.problem.data import Batches

prange = range  # Numba's parallel range in the compiled kernel


def local_steps(received, memory, message, rate, options, batches, geometry):  # bound by `specialize`, as the next two
    raise NotImplementedError


def memory_of(stack, i):
    raise NotImplementedError


def message_of(stack, i):
    raise NotImplementedError


@kernel
def visit(
    received, memory, messages, rate, options, x, y, offsets, clients, order, edges, first, widths, geometry
):  # fmt: skip
    """Every client of the cohort takes its local steps from the broadcast, on its own rows.

    It changes its memory [S, remembered, J, P] and leaves its message in messages [S, sent, J, P].
    """
    for i in prange(clients.shape[0]):
        low, high = offsets[clients[i]], offsets[clients[i] + 1]
        batches = Batches(x[low:high], y[low:high], order, edges[first[i] : first[i + 1] + 1], widths)
        local_steps(received, memory_of(memory, i), message_of(messages, i), rate, options, batches, geometry)
