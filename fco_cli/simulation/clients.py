"""Whoever holds the clients: their rows and what they remember between rounds.

A simulation has them in its own process (`Here`). Between real sites it is the same simulation, with clients that are
elsewhere (fco_cli/federation); their rows and memories never come to this process.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from fco_cli.algorithms import Algorithm, Cohort, State
from fco_cli.algorithms.rounds import Round
from fco_cli.algorithms.transforms import Evaluated
from fco_cli.errors import UserError
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.evaluate import OwnMetrics, evaluate_own
from fco_cli.simulation.memory import Saved, client_memory
from fco_cli.simulation.stop import Stop

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_LOSSES = 20  # of clients at sites, in one piece of work
MOST_PERSONAL = 32 * 2**20  # numbers of personal models that a record keeps


class ClientsLost(Exception):
    """Some clients no longer answer; what is saved can be continued when they are back."""


def again_after_losses(work: Callable[[], T], stop: Stop) -> T:
    """What comes of `work`, which goes on from what is saved whenever clients were lost and are back."""
    losses = 0
    while True:
        try:
            return work()
        except ClientsLost as problem:
            losses += 1
            stop.check()
            if losses > MOST_LOSSES:
                raise UserError(f"federation: {problem}, {losses} times") from problem
            log.warning("%s; continuing from what is saved", problem)


class Clients(ABC):
    """The clients of a stack of jobs."""

    @abstractmethod
    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        """One more round of the algorithm with the clients of the cohort; they remember nothing of it yet."""

    @abstractmethod
    def remember(self, cohort: Cohort | None, made: Round, finite: Array) -> None:
        """The clients whose message arrived now remember that round, in the jobs [J] that it has not ended."""

    @abstractmethod
    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        """How the clients' own models do on their own rows, of a method that has such."""

    @abstractmethod
    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        """The models [M, P] that clients remember as their own in job j, unless they stay with them."""

    @abstractmethod
    def keep(self, jobs: Array) -> None:
        """The stack goes on with these jobs only, a mask [J]."""

    @abstractmethod
    def save(self, j: int) -> Saved:
        """What a checkpoint of job j must hold of the clients."""

    @abstractmethod
    def saved(self) -> None:
        """The checkpoints of all jobs are on disk."""

    @abstractmethod
    def load(self, j: int, saved: Saved) -> None:
        """Continue job j from a checkpoint."""

    def evaluated(self, evaluations: int) -> Evaluated | None:
        """What so many evaluations have told of the clients' rows; none: nobody but who simulates them."""
        return None

    def ended(self) -> None:  # noqa: B027 - who is elsewhere must be told
        """All jobs have come to their ends: nothing that clients remember is needed any more."""


class Here(Clients):
    """In this process; `folders`, one for every job, is where a memory too large for it may live."""

    def __init__(self, problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> None:
        self.problem, self.jobs = problem, len(w)
        self.memory = None
        if algorithm.kept:
            self.memory = client_memory(algorithm.initial_kept(w), problem.data.clients, folders)

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        remembered = None if self.memory is None or cohort is None else self.memory.of_clients(cohort.clients)
        return algorithm.round(state, cohort, remembered)

    def remember(self, cohort: Cohort | None, made: Round, finite: Array) -> None:
        if self.memory is not None and cohort is not None:
            assert made.memory is not None
            assert made.arrived is not None
            self.memory.write(cohort.clients, made.memory, made.arrived & finite)

    def own_metrics(self, algorithm: Algorithm, state: State) -> OwnMetrics:
        name = algorithm.personal
        assert name is not None

        def models_of(clients: Array) -> Array:
            if name in algorithm.remembered:
                assert self.memory is not None
                return self.memory.read(clients)[:, algorithm.remembered.index(name)]
            return state[name][:, clients].swapaxes(0, 1)

        return evaluate_own(self.problem, self.jobs, models_of)

    def own_models(self, algorithm: Algorithm, j: int) -> Array | None:
        clients = self.problem.data.clients
        large = clients * self.problem.layout.size > MOST_PERSONAL
        if self.memory is None or algorithm.personal not in algorithm.remembered or large:
            return None
        return self.memory.of_job(j, np.arange(clients))[:, algorithm.remembered.index(algorithm.personal)]

    def keep(self, jobs: Array) -> None:
        self.jobs = int(jobs.sum())
        if self.memory is not None:
            self.memory.keep(jobs)

    def save(self, j: int) -> Saved:
        return {} if self.memory is None else self.memory.save(j)

    def saved(self) -> None:
        if self.memory is not None:
            for j in range(self.jobs):
                self.memory.saved(j)

    def load(self, j: int, saved: Saved) -> None:
        if self.memory is not None:
            self.memory.load(j, saved)
