"""Who takes part in a round, and in which order their rows are seen: a function of (seed, round) alone."""

from __future__ import annotations

import functools

import numpy as np

from fco_cli.algorithms import Cohort
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import ROUNDS, generator
from fco_cli.simulation.settings import Settings


def sample_cohort(data: ClientData, settings: Settings, seed: int, round_index: int) -> Cohort:
    """Clients uniformly without replacement; each epoch shuffled, its last partial batch kept (SPEC section 2)."""
    random = generator(seed, ROUNDS, round_index)
    clients = random.choice(data.clients, settings.clients_per_round, replace=False)
    order, edges, first = [], [_NO_ROWS], [0]
    seen = 0
    for low, size in zip(data.start[clients].tolist(), data.sizes[clients].tolist(), strict=True):
        ends = _batch_ends(size, settings.batch_size)
        for _ in range(settings.local_epochs):
            rows = random.permutation(size)
            rows += low
            order.append(rows)
            edges.append(ends + seen)
            seen += size
        first.append(first[-1] + settings.local_epochs * len(ends))
    weights = data.sizes[clients] if settings.weighting == "examples" else np.ones(len(clients))
    return Cohort(clients, np.concatenate(order), np.concatenate(edges), np.array(first), weights.astype(float))


_NO_ROWS = np.zeros(1, dtype=np.int64)


@functools.lru_cache(maxsize=4096)
def _batch_ends(size: int, batch_size: int) -> Array:
    """Where the batches of one epoch end: 128 rows in batches of 10 make 13, the last of 8."""
    return np.append(np.arange(batch_size, size, batch_size), size)
