"""The `aggregation` group: when the server updates its model, and from which messages.

`synchronous`: after every round, from the messages of the round's clients. `buffered`: whenever `buffer` messages have
arrived; `hparams.clients_per_round` clients compute at any time, each from the model at its own start (FedBuff: Nguyen
et al., 2022). buffer=1 is asynchronous.

A message of staleness tau, the number of updates since its client's start, has the weight p_m / (1 + tau)^exponent in
the mean of the buffer. FedBuff divides by the sum of the p_m alone, so that stale buffers make shorter steps. For dual
methods the mean must be a weighted mean: the cumulative step size t counts the steps of whole messages, and psi would
have too much weight relative to a sum of gradients that is too small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fco_cli.errors import require
from fco_cli.problem.registry import Registry
from fco_cli.simulation.clients import Clients, LocalClients
from fco_cli.simulation.systems.buffered import BufferedClients, BufferedSchedule
from fco_cli.simulation.systems.participation import ClientParticipation
from fco_cli.simulation.systems.schedule import RoundSchedule, Schedule
from fco_cli.simulation.systems.time_model import TimeModel

if TYPE_CHECKING:
    from fco_cli.simulation.clients import Sampler


@dataclass(kw_only=True)
class Aggregation(ABC):
    """Base class of the group; the dataclass fields are its keys."""

    name: str

    @property
    def depends_on_times(self) -> bool:
        """True if the clients' times determine which messages are used."""
        return False

    @property
    def is_synchronous(self) -> bool:
        """True if all clients of a round start from the current state."""
        return True

    @property
    def clients(self) -> Callable[..., Clients]:
        """Factory of the clients in this process."""
        return LocalClients

    @abstractmethod
    def schedule(self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel) -> Schedule:
        """Return the schedule of a run."""


@dataclass(kw_only=True)
class Synchronous(Aggregation):
    """The server waits for all clients of a round, at most until the deadline."""

    name: str = "synchronous"
    deadline: float | None = None  # simulated seconds after which a round ends without its late clients

    def __post_init__(self) -> None:
        is_valid = self.deadline is None or 0 < self.deadline < 1e6
        require(is_valid, "aggregation.deadline", self.deadline, "null or a number > 0 and below 1e6, in seconds")

    @property
    def depends_on_times(self) -> bool:
        return self.deadline is not None

    def schedule(self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel) -> Schedule:
        return RoundSchedule(sampler, participation, time_model, self.deadline)


@dataclass(kw_only=True)
class Buffered(Aggregation):
    """The server updates its model from every `buffer` messages; clients start from the latest model."""

    name: str = "buffered"
    buffer: int = 5  # messages per update
    exponent: float = 0.5
    max_staleness: int | None = None  # staler messages are discarded on arrival

    def __post_init__(self) -> None:
        require(self.buffer >= 1, "aggregation.buffer", self.buffer, "a whole number >= 1")
        require(0 <= self.exponent < math.inf, "aggregation.exponent", self.exponent, "a number >= 0")
        is_valid = self.max_staleness is None or self.max_staleness >= 0
        require(is_valid, "aggregation.max_staleness", self.max_staleness, "null or a whole number >= 0")

    @property
    def depends_on_times(self) -> bool:
        return True

    @property
    def is_synchronous(self) -> bool:
        return False

    @property
    def clients(self) -> Callable[..., Clients]:
        return BufferedClients

    def schedule(self, sampler: Sampler, participation: ClientParticipation, time_model: TimeModel) -> Schedule:
        return BufferedSchedule(sampler, participation, time_model, self)


all_aggregations: Registry[Aggregation] = Registry("aggregation", Aggregation, __package__)
