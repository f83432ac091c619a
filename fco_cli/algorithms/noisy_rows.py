"""Noise of the clients' sums over rows, for transforms that protect single rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np

from fco_cli.algorithms.base import Algorithm
from fco_cli.algorithms.derivation import RowSums, is_affine_in_gradient
from fco_cli.algorithms.rounds import Cohort
from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array, Numbers, stack_numbers
from fco_cli.problem.private_descent import CohortNoise
from fco_cli.problem.streams import row_noise


class NoisyRows(Algorithm):
    """Method whose sums over rows can have noise."""

    row_sums: ClassVar[RowSums]  # sums over rows that the text of the method reads once each

    @property
    @abstractmethod
    def steps_kernel(self) -> Kernel:
        """Kernel of the local steps."""

    @cached_property
    def _transform_numbers(self) -> Numbers:
        """Parameters of the transform [J]."""
        numbers = self.varying.transform
        return stack_numbers([self.transform] * len(self.varying)) if numbers is None else numbers

    @property
    def has_noise(self) -> bool:
        """True if the sums over rows have noise in some job."""
        return self.transform.protects_rows and bool((self._transform_numbers["noise_multiplier"] > 0).any())

    def noise_vectors(self, steps: Array) -> Array:
        """Return the number of noise vectors that clients with these numbers of local steps need in a round."""
        vectors = 1 if self.row_sums == "all_rows" else self.problem.layout.size + 1
        return steps if self.row_sums == "batches" else np.full_like(steps, vectors)

    @property
    def can_share_noise(self) -> bool:
        """True if a message after one local step is affine in its sum over rows for any state.

        The noise of several clients then adds up in the sum of their messages.
        """
        return not self.client_arrays and is_affine_in_gradient(self.steps_kernel)

    def check_shares(self) -> None:
        """Raise UserError if clients share their noise and the method does not support it."""
        allowed = f"1 for {self.name}, whose messages are not affine in one sum over rows"
        shares = self.transform.shares
        require(shares == 1 or self.can_share_noise, "transform.noise_shares", shares, allowed)

    def noise_scales(self, weights: Array, sizes: Array, batch_size: int, steps: Array) -> Array:
        """Return the factors [S] of the noise of clients with these weights and numbers of rows; 1 if it is not shared.

        The noise of any `transform.shares` of them then hides a row of any client. Raise UserError if the messages are
        not affine in one sum.
        """
        shares = self.transform.shares
        if shares == 1:
            return np.ones(len(sizes))
        self.check_shares()
        takes_batches = self.row_sums == "batches"
        allowed = f"at least {sizes.max()}, the rows of the largest client: noise is shared in one local step per round"
        require(not takes_batches or (steps == 1).all(), "hparams.batch_size", batch_size, allowed)
        units = weights / (np.minimum(batch_size, sizes) if takes_batches else sizes)
        return units.max() / units / math.sqrt(shares)

    def cohort_noise(self, cohort: Cohort) -> CohortNoise | None:
        """Return the noise of the clients' sums over rows, equal for all jobs; None if the transform has none."""
        if not self.transform.protects_rows:
            return None
        size, counts = self.problem.layout.size, self.noise_vectors(cohort.steps)
        require_memory("transform: the noise of a round", int(counts.sum()) * size * 8)
        noise = np.empty((int(counts.sum()), 1, size))
        starts = np.append(0, np.cumsum(counts)).astype(np.int64)
        sizes = self.problem.data.sizes[cohort.clients]
        scales = self.noise_scales(cohort.weights, sizes, cohort.batch_size, cohort.steps)
        for i, client in enumerate(cohort.clients):
            vectors = row_noise(cohort.seed, cohort.round, client, int(counts[i]), size)
            noise[starts[i] : starts[i + 1], 0] = scales[i] * vectors
        return CohortNoise(noise, starts, cohort.batch_size)
