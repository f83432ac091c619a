"""Sparse messages with error feedback (Stich, Cordonnier and Jaggi, 2018, Algorithm 1; Seide et al., 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fco_cli.algorithms.transforms.base import Transform
from fco_cli.errors import require
from fco_cli.problem.compiled import kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers
from fco_cli.problem.regularizers.ordered import by_magnitude


@kernel
def entries(share, size):
    """k: the share of P entries, rounded, at least one."""
    return max(1, int(share * size + 0.5))


@kernel
def add_to(vector, residual):
    """vector <- vector + residual, of which nothing remains."""
    for i in range(vector.shape[0]):
        vector[i] += residual[i]
        residual[i] = 0


@dataclass(kw_only=True)
class TopK(Transform):
    """Of every array the k largest entries are sent. The others wait: they are added to the next message.

    Not so where an array is the difference to what the client remembers to have sent. What is left out of it is in the
    next one anyway (EF21: Richtárik, Sokolov and Fatkhullin, 2021), and added once more it would pile up.
    """

    name: str = "topk"
    share: float = 0.1  # k as a share of the P parameters
    residuals = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "transform.share", self.share, "above 0, at most 1: k as a share of all entries")

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        for n in range(message.shape[0]):
            for j in range(message.shape[1]):
                sent, waits = message[n, j], n < residual.shape[0]
                if waits:
                    add_to(sent, residual[n, j])
                order = by_magnitude(sent)
                for rank in range(entries(numbers[j].share, sent.shape[0]), sent.shape[0]):
                    i = order[rank]
                    if waits:
                        residual[n, j, i] = sent[i]
                    sent[i] *= 0  # NaN and infinity stay visible

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """k values and k indices, each of as many bits as tell P entries apart."""
        k = np.array([entries.python(share, size) for share in numbers["share"]])
        return k * itemsize + -(-k * (size - 1).bit_length() // 8)
