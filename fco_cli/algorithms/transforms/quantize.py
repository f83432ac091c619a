"""Quantization of messages by unbiased stochastic rounding to levels between -s and s.

As QSGD (Alistarh et al., 2017), where s is the 2-norm; here s is the largest magnitude, which gives finer levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.algorithms.transforms.base import Transform
from fco_cli.errors import require
from fco_cli.kernels.compiled import is_finite, kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.streams import subkey, uniform

if TYPE_CHECKING:
    from fco_cli.algorithms.round import FederatedRound


@kernel
def interval_count(bits):
    """Return the number of intervals between -s and s: even, so that 0 is a level; 1 for one bit."""
    return max(1.0, 2.0**bits - 2)


@kernel
def stochastic_round(vector, steps, draws):
    """Round every entry to one of the two adjacent levels, in place and without bias; draws [P] are uniform."""
    scale = 0.0
    for i in range(vector.shape[0]):
        scale = max(scale, abs(np.float64(vector[i])))
    if scale == 0 or not is_finite(scale):
        return
    for i in range(vector.shape[0]):
        place = (vector[i] / scale + 1) * (steps / 2)
        level = np.floor(place)
        if draws[i] < place - level:
            level += 1
        if level > steps:  # rounding error
            level = steps
        vector[i] = scale * ((2 * level - steps) / steps)


@dataclass(kw_only=True)
class Quantize(Transform):
    """Stochastic quantization: a message contains s and, for every entry, the index of its level in `bits` bits."""

    name: str = "quantize"
    bits: int = 8
    random = True

    def __post_init__(self) -> None:
        require(1 <= self.bits <= 32, "transform.bits", self.bits, "a whole number from 1 to 32")

    def check(self, algorithm: FederatedRound, weighting: str) -> None:
        is_valid = any(array.difference for array in algorithm.sent) or not algorithm.accumulates_messages
        allowed = f"none or topk: {algorithm.name}'s server accumulates messages, and rounding errors with them"
        require(is_valid, "transform", self.name, allowed)

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        draws = np.empty(message.shape[2])
        for n in range(message.shape[0]):
            own = subkey(key, n)
            for i in range(draws.shape[0]):
                draws[i] = uniform(own, i)
            for j in range(message.shape[1]):
                stochastic_round(message[n, j], interval_count(numbers[j].bits), draws)

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """Return the bytes of the packed level indices and of s."""
        return -(-numbers["bits"].astype(int) * size // 8) + itemsize
