"""Data of a simulation: jobs, the setup that they share, and rounds that are not yet evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fco_cli.algorithms import Algorithm, State
from fco_cli.algorithms.rounds import Costs
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.simulation.clients import Clients, LocalClients
from fco_cli.simulation.evaluate import History, Snapshots
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.memory import SavedMemory
from fco_cli.simulation.systems.network import Network
from fco_cli.tasks.base import Task

COUNTERS = (*Costs._fields, "clients_dropped")


@dataclass
class Job:
    """State of one run, the content of its checkpoint."""

    round: int = 0  # completed rounds
    state: State = field(default_factory=dict)  # without the job axis; empty before the first round
    memory: SavedMemory = field(default_factory=dict)  # the clients' memory, as stored in a checkpoint
    counters: Array = field(default_factory=lambda: np.zeros(len(COUNTERS), dtype=np.int64))
    history: History = field(default_factory=History)  # metric -> value at every evaluated round
    seconds: float = 0.0  # computation time, over all sessions
    diverged: int | None = None  # the round in which the job diverged
    model: Array | None = None  # the output, set when the job ends
    certified: bool = False  # the relative gap is below the tolerance (problem/certificate.py)
    clients: Array | None = None  # [S + 1, P], the last round's client models and their average (record_clients)
    path: Snapshots = field(default_factory=dict)  # the model at a few rounds (record_path)
    own: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # personal models: metric -> clients, values
    missing: dict[int, tuple[str, ...]] = field(default_factory=dict)  # round -> sites without a response

    @property
    def ended(self) -> bool:
        return self.model is not None


@dataclass(frozen=True)
class Setup:
    """Settings shared by all jobs of a stack."""

    task: Task
    problem: Problem
    hparams: Hparams
    seed: int
    algorithm: Algorithm
    record_clients: bool = False  # keep the client models of the last round
    record_path: bool = False  # keep the model at a few rounds
    clients: Callable[[Problem, Algorithm, Array, list[Path] | None], Clients] = LocalClients  # factory of the clients
    network: Network = field(default_factory=Network)


@dataclass(frozen=True)
class Step:
    """A round of the whole stack, not yet evaluated."""

    done: int  # completed rounds, including this one
    before: State
    state: State
    counters: Array  # [COUNTERS, J]
    finite: Array  # [J], mask of the jobs whose state is finite

    def take(self, jobs: Array) -> Step:
        """Return the step restricted to the jobs of a mask [J]."""
        before, state = ({name: values[jobs] for name, values in old.items()} for old in (self.before, self.state))
        return Step(self.done, before, state, self.counters[:, jobs], self.finite[jobs])
