"""Random numbers as a function of (seed, stream, index): no generator state is ever kept."""

from __future__ import annotations

import numpy as np

TRUTH, MEANS, TRAINING, VALIDATION, MODEL, ROUNDS, PROBES = range(7)


def generator(seed: int, stream: int, index: int = 0) -> np.random.Generator:
    """A counter-based generator; one stream per purpose, one index per round."""
    key = np.array([seed, (stream << 48) + index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
