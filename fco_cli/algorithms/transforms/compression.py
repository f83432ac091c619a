"""Compression of messages: stochastic quantization and top-k sparsification.

Quantization is unbiased rounding to levels between -s and s, as in QSGD (Alistarh et al., 2017), where s is the 2-norm;
here s is the largest magnitude, which gives finer levels. Sparse messages have error feedback (Stich, Cordonnier and
Jaggi, 2018, Algorithm 1; Seide et al., 2014).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.algorithms.transforms.base import Transform
from fco_cli.errors import require
from fco_cli.kernels.compiled import is_finite, kernel
from fco_cli.problem.layout import Array, Numbers
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
    bits: int = 8  # per entry of a message
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


@kernel
def entry_count(share, size):
    """Return k, the given share of `size` entries, rounded and at least 1."""
    return max(1, int(share * size + 0.5))


@kernel
def kth_largest(values, k):
    """Return the k-th largest value by quickselect (Hoare); reorders `values`. Terminates also with NaN."""
    low, high = 0, values.shape[0] - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return values[k - 1]


@kernel
def keep_largest(vector, k, rest):
    """Keep the k entries of largest magnitude in `vector`, the first of equal ones; move the others to `rest`."""
    magnitude, equal = np.empty_like(vector), k
    for i in range(vector.shape[0]):
        magnitude[i] = abs(vector[i])
    least = kth_largest(magnitude, k)
    for i in range(k):
        equal -= magnitude[i] > least
    for i in range(vector.shape[0]):
        rest[i] = 0
        if abs(vector[i]) == least and equal > 0:
            equal -= 1
        elif not abs(vector[i]) > least:
            rest[i] = vector[i]
            vector[i] *= 0  # propagate NaN and infinity


@dataclass(kw_only=True)
class TopK(Transform):
    """Top-k sparsification: the k largest entries of every array are sent, the others are added to the next message.

    No residual is stored for arrays that are differences to client memory: the next message
    contains the omitted entries again (EF21: Richtárik, Sokolov and Fatkhullin, 2021).
    """

    name: str = "topk"
    share: float = 0.1  # k / P, share of the entries that are sent
    residuals = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "transform.share", self.share, "above 0, at most 1: k as a share of all entries")

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        discarded = np.empty_like(message[0, 0])
        for n in range(message.shape[0]):
            for j in range(message.shape[1]):
                sent, k = message[n, j], entry_count(numbers[j].share, message.shape[2])
                if n < residual.shape[0]:
                    for i in range(sent.shape[0]):
                        sent[i] += residual[n, j, i]
                    keep_largest(sent, k, residual[n, j])
                else:
                    keep_largest(sent, k, discarded)

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """Return the bytes of k values and k indices of ceil(log2(size)) bits each."""
        k = np.array([entry_count.python(share, size) for share in numbers["share"]])
        return k * itemsize + -(-k * (size - 1).bit_length() // 8)
