"""Schedules: the clients whose messages the server aggregates in each round, and the simulated time of the round.

A schedule is a function of the configuration and the seed: it does not depend on the model's values, so that a resumed
run computes it again from round 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fco_cli.algorithms.rounds import Cohort
from fco_cli.problem.layout import Array
from fco_cli.results import SIMULATED_SECONDS
from fco_cli.simulation.systems.participation import ClientParticipation
from fco_cli.simulation.systems.time_model import Clock, TimeModel

if TYPE_CHECKING:
    from fco_cli.simulation.clients import Sampler

ABSENT = "clients_absent"  # column of metrics.csv


class Costed(Protocol):
    """Part of a federated algorithm that a schedule uses."""

    @property
    def client_costs(self) -> tuple[int, int, int | Array, int]:
        """Vectors and bytes of a client's messages: vectors up, down, bytes up ([J] if they differ), down."""

    def client_gradients(self, cohort: Cohort) -> Array:
        """Return the number of row gradients of every client: [S]."""


class Plan(NamedTuple):
    """One round of a schedule."""

    cohort: Cohort
    absent: int = 0  # clients that received the model and whose message is not used
    nanoseconds: Array | int = 0  # [J] if the message size differs between jobs


@dataclass(frozen=True)
class UpdateWeights:
    """Weights of the clients in the updates of a run, relative to those in the objective; part of its record."""

    least: float
    largest: float
    without_messages: int  # rounds
    biased: bool  # True if the expected weights are not equal
    line: str


def summarize_weights(weights: Array, empty: int, rounds: int, biased: bool) -> UpdateWeights:
    """Return the summary of the relative weights [M]; `empty` of the rounds had no message."""
    least, largest, never = float(weights.min()), float(weights.max()), int((weights == 0).sum())
    parts = [f"weights of clients in the updates: {least:.2g} to {largest:.2g} times those in the objective"]
    if never:
        parts.append(f"{never} of {len(weights)} clients never contributed")
    if empty:
        parts.append(f"{empty} of {rounds} rounds had no message and left the model unchanged")
    return UpdateWeights(least, largest, empty, biased, "; ".join(parts))


class Schedule(ABC):
    """Sequence of the rounds of a run."""

    def __init__(self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel) -> None:
        self.sampler, self.participation = sampler, participation
        self.clients = len(sampler.sizes)
        participation.check(self.clients)
        self.rates = participation.response_rates(self.clients) if participation.reweights else None
        self.clock = Clock(time_model, sampler.seed, self.clients) if time_model.is_timed else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the schedule adds to metrics.csv."""
        return (ABSENT,) if self.clock is None else (ABSENT, SIMULATED_SECONDS)

    @abstractmethod
    def plan(self, round_index: int, algorithm: Costed) -> Plan:
        """Return a round."""

    def reweighted(self, cohort: Cohort, drawn: int, available: int) -> Cohort:
        """Return a cohort of `drawn` of the available clients, with unbiased means if the participation reweights.

        The sum of w_m / rate_m message_m over the cohort, times available / drawn and divided by the sum of all w_m,
        has the expectation of a round in which all clients respond (Horvitz and Thompson, 1952).
        """
        if self.rates is None or not len(cohort.clients):
            return cohort
        weights = cohort.weights / self.rates[cohort.clients]
        reachable = float(self.sampler.weights[self.rates > 0].sum())
        return replace(cohort, weights=weights, scale=float(weights.sum()) * available / drawn / reachable)

    def update_weights(self, rounds: int, algorithm: Costed) -> tuple[Array, int]:
        """Return the mean weight [M] of each client's messages in the updates of the first rounds, relative to p_m.

        Also return the number of rounds without a message, which are not counted.
        """
        total, empty = np.zeros(self.clients), 0
        for round_index in range(rounds):
            cohort = self.plan(round_index, algorithm).cohort
            if len(cohort.clients):
                np.add.at(total, cohort.clients, cohort.scale * cohort.weights / cohort.weights.sum())
            else:
                empty += 1
        shares = self.sampler.weights / self.sampler.total_weight
        return total / max(1, rounds - empty) / shares, empty


class RoundSchedule(Schedule):
    """Synchronous rounds: the server waits for all clients that respond, at most until the deadline."""

    def __init__(
        self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel, deadline: float | None
    ) -> None:
        super().__init__(sampler, participation, time_model)
        self.deadline = None if deadline is None else round(1e9 * deadline)

    def plan(self, round_index: int, algorithm: Costed) -> Plan:
        sampler, participation = self.sampler, self.participation
        available = participation.available(sampler.seed, round_index, self.clients)
        invited = sampler.draw(round_index, available)
        responds = participation.responding(sampler.seed, round_index, invited, self.clients)
        clients = invited if responds is None else invited[responds]
        cohort, nanoseconds = sampler.cohort(round_index, clients), np.zeros(1, np.int64)
        if self.clock is not None and len(clients):
            *_, up, down = algorithm.client_costs
            times = self.clock.nanoseconds(round_index, clients, algorithm.client_gradients(cohort), down, up)
            nanoseconds = times.max(axis=0)
            if self.deadline is not None and (late := times[:, 0] > self.deadline).any():
                clients = clients[~late]
                cohort = sampler.cohort(round_index, clients)
        absent = len(invited) - len(clients)
        if self.deadline is not None and absent:
            nanoseconds = np.array([self.deadline])
        count = self.clients if available is None else len(available)
        cohort = self.reweighted(replace(cohort, invited=len(invited)), len(invited), count)
        return Plan(cohort, absent, nanoseconds)
