"""Sampling of clients and batches, which depends only on the seed, the round and the clients' sizes."""

from __future__ import annotations

import numpy as np

from fco_cli.algorithms.rounds import Cohort, LocalSteps
from fco_cli.problem.layout import Array
from fco_cli.problem.streams import COHORTS, COIN, Stream, batches_of, generator, local_steps_of
from fco_cli.simulation.hparams import Hparams


class Sampler:
    """Sampler of the cohorts of a run, from the number of rows of each client."""

    def __init__(
        self, sizes: Array, hparams: Hparams, seed: int, pace: LocalSteps = "epochs", shares: Array | None = None
    ) -> None:
        """Set up the sampler; `shares` replaces the client weights, proportional to p_m, if rows are weighted."""
        self.sizes, self.hparams, self.seed, self.pace = sizes, hparams, seed, pace
        self.batching = hparams.batch_size, hparams.local_epochs, hparams.last_batch
        self.steps = local_steps_of(sizes, *self.batching)  # K of every client: [M]
        if shares is None:
            shares = sizes if hparams.weighting == "examples" else np.ones(len(sizes))
        self.weights = shares.astype(float)
        self.total_weight, self.min_steps = float(self.weights.sum()), float(self.steps.min())
        self.mean_steps = float((self.weights * self.steps).sum() / self.total_weight)
        if pace != "epochs":
            self.mean_steps = float(round(self.mean_steps))
        self.sampled = hparams.sampled(len(sizes))
        self.stream = Stream(seed, COHORTS)

    def cohort(self, round_index: int) -> Cohort:
        """Draw clients uniformly without replacement, each with shuffled epochs of its rows."""
        hparams = self.hparams
        clients = self.stream.at(round_index).choice(len(self.sizes), self.sampled, replace=False)
        steps = self._common_steps(round_index)
        batches = batches_of(self.seed, round_index, clients, self.sizes[clients], *self.batching, steps)
        return Cohort(
            clients,
            *batches,
            weights=self.weights[clients],
            total_weight=self.total_weight,
            mean_steps=self.mean_steps,
            normalize=hparams.normalize_steps,
            min_steps=self.min_steps,
            seed=self.seed,
            round=round_index,
            fraction_bits=hparams.fraction_bits,
        )

    def _common_steps(self, round_index: int) -> int | None:
        """Return the number of local steps of every client; None if each takes the steps of its epochs."""
        if self.pace == "geometric":
            return int(generator(self.seed, COIN, round_index).geometric(1 / self.mean_steps))
        return None if self.pace == "epochs" else int(self.mean_steps)
