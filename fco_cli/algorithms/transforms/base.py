"""Base class of transforms: kernels applied to a client's message before it is sent.

Client and server both use the transformed message: it is the input of an algorithm's `remember` and of the aggregates.
Client memory and server state therefore stay consistent, and algorithms do not depend on the transform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from fco_cli.algorithms.numba_backend import keep_message
from fco_cli.kernels.compiled import Kernel
from fco_cli.problem.layout import Array, Numbers, numbers_of
from fco_cli.problem.registry import Registry

if TYPE_CHECKING:
    from fco_cli.algorithms.round import FederatedRound
    from fco_cli.algorithms.rounds import Aggregates, Cohort
    from fco_cli.problem.problem import Problem


class Evaluations(NamedTuple):
    """Evaluation results of bounded norm that all clients have sent, aggregated with noise."""

    answers: int  # number of results
    noise_multiplier: float  # as in `clip_noise`; 0: no noise


class Releases(NamedTuple):
    """Sums over rows that every client has released so far, if their noise hides single rows."""

    sums: Array  # [M], numbers of sums
    sampling: Array  # [M], probability that a sum contains a given row
    preparation_noise: float | None = None  # noise multiplier of one more sum, for the preparation; None: none
    change: float = 1.0  # half of the largest change of a sum by one row, in the unit of the noise multiplier


@dataclass(kw_only=True)
class Transform:
    """Base class of the `transform` config group; the dataclass fields are parameters that may differ between jobs."""

    name: str
    residuals: ClassVar[bool] = False  # True: clients store the residuals of arrays that are no differences
    random: ClassVar[bool] = False  # True: `encode` draws random numbers from its key
    noisy: ClassVar[bool] = False  # True: noise is added to the mean of the messages
    protects_rows: ClassVar[bool] = False  # True: batches are secret samples, and noise in gradients hides single rows
    gradient_step: ClassVar[Kernel | None] = None  # replaces `descent.gradient_step` if it protects rows
    encode: ClassVar[Kernel]
    """Kernel encode(message, residual, numbers, key): transform a client's message in place.

    `message` is [slots, J, P]. `residual` [n, J, P] belongs to the first n slots of the message; n may be 0. `numbers`
    [J] contains the transform's parameters by name. `key` is derived from (seed, round, client); all jobs use the same
    random numbers. A message that is not finite must stay so; the server ignores it.
    """

    @property
    def shares(self) -> int:
        """Number of clients whose noise together hides a row; 1: every client adds the whole noise."""
        return 1

    @property
    def numbers(self) -> Numbers:
        """Parameters for `encode` as a record array [1]."""
        return numbers_of(self)

    def check(self, algorithm: FederatedRound, weighting: str) -> None:
        """Raise UserError if the algorithm is not supported; called before data are loaded."""

    def check_problem(self, problem: Problem) -> None:
        """Raise UserError if the problem is not supported."""

    def bytes_of(self, size: int, itemsize: int, numbers: Numbers) -> int | Array:
        """Return the number of bytes of a transformed vector of `size` entries; [J] if it differs between jobs."""
        return size * itemsize

    def noise_on_mean(self, cohort: Cohort, numbers: Numbers, largest: Array) -> Array:
        """Return the standard deviation [J] of the noise on the mean.

        `largest` [J] is the largest factor by which step normalization scales a message.
        """
        return np.zeros(len(numbers))

    def with_noise(self, aggregates: Aggregates, cohort: Cohort, deviation: Array) -> Aggregates:
        """Return the aggregates with noise added to their means."""
        return aggregates

    def privacy_spent(
        self,
        rounds: int,
        sampled: int,
        clients: int,
        dropped: Array,
        numbers: Numbers,
        evaluated: Evaluations | None = None,
        releases: Releases | None = None,
    ) -> dict[str, Array]:
        """Return the privacy metrics [J] after `rounds` rounds with `sampled` of `clients` clients each.

        `dropped` [J] is the number of messages that were not finite. `evaluated` describes evaluations that other
        parties have received, if any. `releases` is given if the transform protects rows.
        """
        return {}


@dataclass(kw_only=True)
class NoTransform(Transform):
    """Identity transform."""

    name: str = "none"
    encode = keep_message


all_transforms: Registry[Transform] = Registry("transform", Transform, __package__)
