"""Few bits for every entry, without bias: stochastic rounding to levels between -s and s, s the largest entry.

QSGD (Alistarh et al., 2017), which takes the 2-norm for s; the largest entry makes the levels finer.
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
    from fco_cli.algorithms.protocol import Federated


@kernel
def steps_between(bits):
    """How many steps lead from -s to s. An even number, so that 0 is a level and stays 0; one bit has two levels."""
    return max(1.0, 2.0**bits - 2)


@kernel
def round_at_random(vector, steps, draws):
    """Every entry goes to one of the two levels next to it, the more probably the nearer that is."""
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
        if level > steps:  # by rounding
            level = steps
        vector[i] = scale * ((2 * level - steps) / steps)


@dataclass(kw_only=True)
class Quantize(Transform):
    """Of every array its largest entry s, and for every entry the number of its level in `bits` bits."""

    name: str = "quantize"
    bits: int = 8
    random = True

    def __post_init__(self) -> None:
        require(1 <= self.bits <= 32, "transform.bits", self.bits, "a whole number from 1 to 32")

    def check(self, algorithm: Federated, weighting: str) -> None:
        sound = algorithm.differences or not algorithm.keeps_sum
        allowed = f"none or topk: {algorithm.name}'s server adds up what its clients hold, and errors would stay in it"
        require(bool(sound), "transform", self.name, allowed)

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        draws = np.empty(message.shape[2])
        for n in range(message.shape[0]):
            own = subkey(key, n)
            for i in range(draws.shape[0]):
                draws[i] = uniform(own, i)
            for j in range(message.shape[1]):
                round_at_random(message[n, j], steps_between(numbers[j].bits), draws)

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """The bits of all entries one after another, and s."""
        return -(-numbers["bits"].astype(int) * size // 8) + itemsize
