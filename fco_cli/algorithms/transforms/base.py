"""What a transform is: a kernel that a client's message goes through before it is sent, whatever the algorithm.

Client and server both go on from what comes out: `remember` of an algorithm, the means and the sums see nothing else.
So control variates stay consistent, and an algorithm needs to know of no transform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.layout import Array
from fco_cli.problem.numbers import Numbers, numbers_of
from fco_cli.problem.registry import members

if TYPE_CHECKING:
    from fco_cli.algorithms.aggregate import Aggregates
    from fco_cli.algorithms.protocol import Federated
    from fco_cli.algorithms.rounds import Cohort


class Evaluated(NamedTuple):
    """Answers that all clients have given about models: their norm is bounded, and their sum has noise."""

    answers: int
    noise_multiplier: float  # as in `clip_noise`; 0: they were exact


@dataclass(kw_only=True)
class Transform:
    """The `transform` group: the fields are its numbers, which may differ within a stack, and its schema."""

    name: str
    residuals: ClassVar[bool] = False  # whether a client remembers what was left out of an array, if nothing else does
    random: ClassVar[bool] = False  # whether `encode` draws from its key
    noisy: ClassVar[bool] = False  # whether the mean of the messages gets noise
    encode: ClassVar[Kernel]
    """encode(message, residual, numbers, key): a client's message becomes what arrives of it, in place.

    message [sent, J, P]; residual likewise, for the first of these arrays or none; numbers [J] by name; key, that of
    (seed, round, client), from which all jobs draw the same. What is not finite must stay so, and then weighs nothing.
    """

    @property
    def numbers(self) -> Numbers:
        """What `encode` receives as `numbers`: [1]."""
        return numbers_of(self)

    def check(self, algorithm: Federated, weighting: str) -> None:
        """Refuse an algorithm whose messages cannot go through this, before any data are built."""

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """What is sent in place of a vector of P numbers; [J] where it depends on what varies."""
        return size * itemsize

    def noise_on_mean(self, cohort: Cohort, numbers: Numbers, largest: Array) -> Array:
        """The deviation [J] of the noise that hides the messages in their mean. `largest` [J]: how often a client's
        message may count at most."""
        return np.zeros(len(numbers))

    def with_noise(self, aggregates: Aggregates, cohort: Cohort, deviation: Array) -> Aggregates:
        """The aggregates with noise on their means."""
        return aggregates

    def spent(
        self,
        rounds: int,
        sampled: int,
        clients: int,
        dropped: Array,
        numbers: Numbers,
        evaluated: Evaluated | None = None,
    ) -> dict[str, Array]:
        """Metrics [J] of what the messages of so many rounds give away, with `sampled` of all clients in each, and what
        they were evaluated by, if others have seen that.

        `dropped` [J] messages were not finite.
        """
        return {}


@dataclass(kw_only=True)
class NoTransform(Transform):
    """Messages arrive as they are."""

    name: str = "none"

    @staticmethod
    @kernel
    def encode(message, residual, numbers, key):
        pass


def all_transforms() -> dict[str, type[Transform]]:
    """Every transform in this folder by name; a new file needs no list to be added to."""
    return members(Transform, __package__)
