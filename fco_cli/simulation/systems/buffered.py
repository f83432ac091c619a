"""Buffered asynchronous aggregation: the schedule of arrivals, and clients that start from earlier states."""

from __future__ import annotations

import heapq
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fco_cli.algorithms.arrays import slot_count
from fco_cli.algorithms.round import FederatedRound
from fco_cli.algorithms.rounds import Batches, Cohort, Round, StaleStarts, State, joined_batches
from fco_cli.problem.layout import Array
from fco_cli.problem.problem import Problem
from fco_cli.problem.streams import DISPATCHES, Stream, message_keys
from fco_cli.simulation.clients import LocalClients
from fco_cli.simulation.memory import DamagedMemory, SavedMemory
from fco_cli.simulation.systems.participation import ClientParticipation
from fco_cli.simulation.systems.schedule import Costed, Plan, Schedule
from fco_cli.simulation.systems.time_model import TimeModel

if TYPE_CHECKING:
    from fco_cli.algorithms import Algorithm
    from fco_cli.simulation.clients import Sampler
    from fco_cli.simulation.systems.aggregation import Buffered

Arrival = tuple[int, int, int, int]  # nanoseconds, number of the start (which decides ties), client, version


class BufferedSchedule(Schedule):
    """Event-driven rounds: one round is one update of the server's model.

    `hparams.clients_per_round` clients compute at any time. A client whose message has arrived, or that dropped out, is
    replaced at once by one drawn among those that do not compute, which starts from the current model.
    """

    def __init__(
        self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel, settings: Buffered
    ) -> None:
        super().__init__(sampler, participation, time_model)
        self.settings = settings
        self.draws = Stream(sampler.seed, DISPATCHES)
        self.gradients: Array | None = None  # [M], the same in every round
        self._restart()

    def _restart(self) -> None:
        self.version, self.starts, self.now = 0, 0, 0
        self.in_flight: list[Arrival] = []
        self.busy = np.zeros(self.clients, dtype=bool)

    def plan(self, round_index: int, algorithm: Costed) -> Plan:
        if self.gradients is None:
            self.gradients = algorithm.client_gradients(self.sampler.cohort(0, np.arange(self.clients)))
        if round_index < self.version:
            self._restart()
        if self.starts == 0:
            for _ in range(self.sampler.sampled):
                self._start(algorithm)
        while self.version < round_index:
            self._update(algorithm)
        before = self.now
        arrivals, absent = self._update(algorithm)
        return Plan(self._cohort(round_index, arrivals, absent), absent, np.array([self.now - before]))

    def _start(self, algorithm: Costed) -> None:
        """Start an idle client from the current model."""
        assert self.clock is not None
        assert self.gradients is not None
        idle = np.flatnonzero(~self.busy)
        client = idle[[self.draws.at(self.starts).integers(len(idle))]]
        *_, up, down = algorithm.client_costs
        duration = self.clock.nanoseconds(self.starts, client, self.gradients[client], down, up)[0, 0]
        heapq.heappush(self.in_flight, (self.now + int(duration), self.starts, int(client[0]), self.version))
        self.busy[client] = True
        self.starts += 1

    def _update(self, algorithm: Costed) -> tuple[list[Arrival], int]:
        """Advance to the next update; return its messages and the number of starts without a usable message."""
        arrivals: list[Arrival] = []
        absent, limit = 0, self.settings.max_staleness
        while True:
            arrival = heapq.heappop(self.in_flight)
            self.now, start, client, version = arrival
            self.busy[client] = False
            responds = self.participation.responding(self.sampler.seed, start, np.array([client]), self.clients)
            if (responds is not None and not responds[0]) or (limit is not None and self.version - version > limit):
                absent += 1
            else:
                arrivals.append(arrival)
            if len(arrivals) == self.settings.buffer:
                self.version += 1
                self._start(algorithm)
                return arrivals, absent
            self._start(algorithm)

    def _cohort(self, round_index: int, arrivals: list[Arrival], absent: int) -> Cohort:
        """Return the cohort of an update: its clients, with the batches of their starts and weights by staleness."""
        clients = np.array([client for *_, client, _ in arrivals])
        versions = np.array([version for *_, version in arrivals])
        parts: list[Batches] = []
        for _, start, client, _ in arrivals:
            own = self.sampler.cohort(start, np.array([client]))
            parts.append(Batches(own.order, own.edges, own.first))
        batches, starts = joined_batches(parts), [start for _, start, *_ in arrivals]
        keys = [message_keys(self.sampler.seed, start, clients[[i]]) for i, start in enumerate(starts)]
        kept = frozenset(version for *_, version in self.in_flight)
        return replace(
            self.sampler.cohort(round_index, clients[:0]),
            clients=clients, **batches._asdict(), invited=len(clients) + absent,
            weights=self.sampler.weights[clients] / (1.0 + (round_index - versions)) ** self.settings.exponent,
            stale=StaleStarts(versions, tuple(parts), np.concatenate(keys), kept),
        )  # fmt: skip


class BufferedClients(LocalClients):
    """Clients in this process that start from earlier states of the server."""

    def __init__(self, problem: Problem, algorithm: Algorithm, w: Array, folders: list[Path] | None) -> None:
        super().__init__(problem, algorithm, w, folders)
        self.states: dict[int, State] = {}  # broadcast arrays [J, ...] by version

    def round(self, algorithm: Algorithm, state: State, cohort: Cohort | None) -> Round:
        assert isinstance(algorithm, FederatedRound)
        assert cohort is not None
        assert cohort.stale is not None
        stale = cohort.stale
        self.states[cohort.round] = {array.name: state[array.name] for array in algorithm.broadcast}
        slots = slot_count(algorithm.sent, self.problem.layout.size)
        messages = np.empty((len(cohort.clients), slots, self.jobs, self.problem.layout.size), self.problem.dtype)
        for version in np.unique(stale.versions):
            (own,) = np.nonzero(stale.versions == version)
            batches = joined_batches([stale.parts[i] for i in own])
            group = replace(cohort, clients=cohort.clients[own], weights=cohort.weights[own], **batches._asdict())
            messages[own] = algorithm.messages(self.states[version], group, stale.keys[own])
        self.states = {version: self.states[version] for version in sorted(self.states) if version in stale.kept}
        return algorithm.finish_round(state, cohort, messages, None)

    def update_memory(self, cohort: Cohort | None, result: Round, finite: Array) -> None:
        """Do nothing: methods with client memory are refused."""

    def keep(self, jobs: Array) -> None:
        super().keep(jobs)
        self.states = {
            version: {name: values[jobs] for name, values in state.items()} for version, state in self.states.items()
        }

    def save(self, j: int) -> SavedMemory:
        return {
            f"{version}/{name}": values[j] for version, state in self.states.items() for name, values in state.items()
        }

    def load(self, j: int, saved: SavedMemory) -> None:
        for key, values in saved.items():
            if not (parts := re.fullmatch(r"(\d+)/(\w+)", key)):
                raise DamagedMemory(f"the checkpoint has an unknown array {key!r}")
            state = self.states.setdefault(int(parts[1]), {})
            if parts[2] not in state:
                state[parts[2]] = np.zeros((self.jobs, *values.shape), values.dtype)
            state[parts[2]][j] = values
