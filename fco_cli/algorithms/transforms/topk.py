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


@dataclass(kw_only=True)
class TopK(Transform):
    """Of every array the k largest entries are sent. The others wait: they are added to the next message."""

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
                sent, left = message[n, j], residual[n, j]
                for i in range(sent.shape[0]):
                    left[i] += sent[i]
                order, k = by_magnitude(left), entries(numbers[j].share, sent.shape[0])
                for rank in range(sent.shape[0]):
                    i = order[rank]
                    sent[i] = (left[i] if rank < k else 0) + 0 * left[i]  # the last term keeps NaN visible
                    if rank < k:
                        left[i] = 0

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """k values and k indices, each of as many bits as tell P entries apart."""
        k = np.array([entries.python(share, size) for share in numbers["share"]])
        return k * itemsize + -(-k * (size - 1).bit_length() // 8)
