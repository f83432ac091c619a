"""Clients of a simulation: the sampling of those that participate in a round, their rows and their memory.

Sampling of clients and batches depends only on the seed, the round and the clients' sizes.

`LocalClients` holds them in this process. In a federation of real sites the same simulation uses remote clients
(fco_cli/federation), whose rows and memory stay at the sites.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.algorithms.arrays import first_slots
from fco_cli.algorithms.rounds import LocalSteps, Participation, Round
from fco_cli.algorithms.transforms import Evaluations
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import COHORTS, COIN, Stream, batches_of, generator, local_steps_of, sampled_batches
from fco_cli.simulation.evaluate import OwnMetrics, evaluate_own
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import SavedMemory, client_memory
from fco_cli.simulation.process import Stop

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_LOSSES = 20  # lost connections to clients before a run fails
MOST_PERSONAL = 32 * 2**20  # largest number of personal weights stored in a record


class ClientsLost(Exception):
    """A loss of connection to some clients; the run can continue from its checkpoint once they are back."""


def retry_after_losses(work: Callable[[], T], stop: Stop) -> T:
    """Return the result of `work`, called again after every ClientsLost: it continues from its checkpoint."""
    losses = 0
    while True:
        try:
            return work()
        except ClientsLost as problem:
            losses += 1
            stop.check()
            if losses > MOST_LOSSES:
                raise UserError(f"federation: {problem}, {losses} times") from problem
            log.warning("%s; continuing from the last checkpoint", problem)


class Sampler:
    """Sampler of the cohorts of a run, from the number of rows of each client."""

    def __init__(
        self,
        sizes: Array,
        hparams: Hparams,
        seed: int,
        pace: LocalSteps = "epochs",
        shares: Array | None = None,
        sample_rows: bool = False,
        rounds_per_cohort: int = 1,
    ) -> None:
        """Set up the sampler; `shares` replaces the client weights, proportional to p_m, if rows are weighted.

        If `sample_rows`, batches are Poisson samples of a client's rows instead of parts of shuffled epochs.
        """
        self.sizes, self.hparams, self.seed, self.pace = sizes, hparams, seed, pace
        self.sample_rows, self.rounds_per_cohort = sample_rows, rounds_per_cohort
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
        self.counted, self.counts = 0, np.zeros((2, len(sizes)), dtype=np.int64)  # of `participation`

    def cohort(self, round_index: int, clients: Array | None = None) -> Cohort:
        """Return the cohort of a round, each client with shuffled epochs, or samples, of its rows.

        The clients are drawn unless they are given; their number may then be 0.
        """
        hparams, steps = self.hparams, self._common_steps(round_index)
        clients = self.draw(round_index) if clients is None else clients
        if len(clients) == 0:
            batches = np.empty(0, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
        elif self.sample_rows:
            each = self.steps[clients] if steps is None else np.full(len(clients), steps)
            drawn = self.seed, round_index, clients, self.sizes[clients], hparams.batch_size, each
            batches = sampled_batches(*drawn)
        else:
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
            batch_size=hparams.batch_size if self.sample_rows else 0,
        )

    def participation(self, rounds: int) -> Participation:
        """Return the participation of all clients in the first `rounds` rounds."""
        if rounds < self.counted:
            self.counted, self.counts = 0, np.zeros_like(self.counts)
        for round_index in range(self.counted, rounds):
            clients, steps = self.draw(round_index), self._common_steps(round_index)
            self.counts[0, clients] += 1
            self.counts[1, clients] += self.steps[clients] if steps is None else steps
        self.counted = rounds
        rounds_of, steps_of = self.counts.copy()
        return Participation(rounds_of, steps_of, np.minimum(1, self.hparams.batch_size / self.sizes))

    def draw(self, round_index: int, available: Array | None = None) -> Array:
        """Draw clients uniformly without replacement, from all or from the available ones, of whom there may be few."""
        random = self.stream.at(round_index // self.rounds_per_cohort)
        if available is None:
            return random.choice(len(self.sizes), self.sampled, replace=False)
        return random.choice(available, min(self.sampled, len(available)), replace=False)

    def _common_steps(self, round_index: int) -> int | None:
        """Return the number of local steps of every client; None if each takes the steps of its epochs."""
        if self.pace == "geometric":
            return int(generator(self.seed, COIN, round_index).geometric(1 / self.mean_steps))
        return None if self.pace == "epochs" else int(self.mean_steps)


class Clients(ABC):
    """The clients of a stack of jobs."""

    @abstractmethod
    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        """Run one round of the algorithm with the clients of the cohort, without updating their memory."""

    @abstractmethod
    def update_memory(self, cohort: Cohort | None, result: Round, finite: Array) -> None:
        """Update the memory of the clients whose message arrived, for the jobs of the mask `finite` [J]."""

    @abstractmethod
    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        """Return the metrics of the clients' personal models on their own rows."""

    @abstractmethod
    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        """Return the personal models [M, P] of job j; None if they stay with the clients or are too large."""

    @abstractmethod
    def keep(self, jobs: Array) -> None:
        """Restrict the stack to the jobs of a mask [J]."""

    @abstractmethod
    def save(self, j: int) -> SavedMemory:
        """Return the clients' part of a checkpoint of job j."""

    @abstractmethod
    def confirm_saved(self) -> None:
        """Confirm that the checkpoints of all jobs are on disk."""

    @abstractmethod
    def load(self, j: int, saved: SavedMemory) -> None:
        """Restore job j from a checkpoint."""

    def evaluated(self, evaluations: int) -> Evaluations | None:
        """Return what a number of evaluations disclosed about the rows; None if the rows are in this process."""
        return None

    def release(self) -> None:  # noqa: B027 - only remote clients have something to do
        """Release the clients' memory after all jobs have ended."""


class LocalClients(Clients):
    """Clients in this process; `folders` has one folder per job for memory that is too large for the process."""

    def __init__(self, problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> None:
        self.problem, self.jobs = problem, len(w)
        self.memory = None
        if algorithm.client_arrays:
            self.memory = client_memory(algorithm.initial_client_arrays(w), problem.data.clients, folders)

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        remembered = None if self.memory is None or cohort is None else self.memory.of_clients(cohort.clients)
        return algorithm.round(state, cohort, remembered)

    def update_memory(self, cohort: Cohort | None, result: Round, finite: Array) -> None:
        if self.memory is not None and cohort is not None:
            assert result.memory is not None
            assert result.arrived is not None
            self.memory.write(cohort.clients, result.memory, result.arrived & finite)

    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        name, slot = algorithm.personal, self._personal_slot(algorithm)
        assert name is not None

        def models_of(clients: Array) -> Array:
            if slot is not None:
                assert self.memory is not None
                return self.memory.read(clients)[:, slot]
            return state[name][:, clients].swapaxes(0, 1)

        return evaluate_own(self.problem, self.jobs, models_of)

    def _personal_slot(self, algorithm: Algorithm) -> int | None:
        """Return the position of the personal models in the clients' memory; None if they are in the state."""
        return first_slots(algorithm.remembered, self.problem.layout.size).get(algorithm.personal or "")

    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        clients = self.problem.data.clients
        is_large = clients * self.problem.layout.size > MOST_PERSONAL
        slot = self._personal_slot(algorithm)
        if self.memory is None or slot is None or is_large:
            return None
        return self.memory.of_job(j, np.arange(clients))[:, slot]

    def keep(self, jobs: Array) -> None:
        self.jobs = int(jobs.sum())
        if self.memory is not None:
            self.memory.keep(jobs)

    def save(self, j: int) -> SavedMemory:
        return {} if self.memory is None else self.memory.save(j)

    def confirm_saved(self) -> None:
        if self.memory is not None:
            for j in range(self.jobs):
                self.memory.confirm_saved(j)

    def load(self, j: int, saved: SavedMemory) -> None:
        if self.memory is not None:
            self.memory.load(j, saved)
