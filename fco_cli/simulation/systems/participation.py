"""The `participation` group: clients that are available in a round, and clients that drop out of it.

Clients are sampled among the available ones. All randomness is a function of (seed, round, client).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.registry import Registry
from fco_cli.problem.streams import DROPOUTS, generator
from fco_cli.simulation.systems.tables import digest, read_probabilities, read_trace


@dataclass(kw_only=True)
class ClientParticipation:
    """Base class of the group; the dataclass fields are its keys. Rounds are numbered from 0."""

    name: str
    by_round: ClassVar[bool] = False  # True: availability depends on the number of the round

    def available(self, seed: int, round_index: int, clients: int) -> Array | None:
        """Return the clients that can be sampled in a round, in increasing order; None if all of them can be."""
        return None

    def responding(self, seed: int, round_index: int, invited: Array, clients: int) -> Array | None:
        """Return the mask [S] of the sampled clients that respond; None if all of them do."""
        return None

    def response_rates(self, clients: int) -> Array:
        """Return the probability [M] that a client is available in a round and responds if it is sampled."""
        return np.ones(clients)

    @property
    def reweights(self) -> bool:
        """True if messages are divided by the `response_rates`."""
        return False

    def is_biased(self, clients: int) -> bool:
        """True if the expected weights of clients in the updates are not proportional to those in the objective."""
        return False

    def identity(self) -> dict[str, Any]:
        """Return the settings that the result depends on."""
        return asdict(self)

    def check(self, clients: int) -> None:
        """Raise UserError if the settings do not match the number of clients."""


@dataclass(kw_only=True)
class UniformParticipation(ClientParticipation):
    """All clients are always available and respond."""

    name: str = "uniform"


@dataclass(kw_only=True)
class Reweighted(ClientParticipation):
    """Participation with known response rates, by which messages can be divided."""

    reweight: bool = False  # true: unbiased updates, with steps of different lengths

    @property
    def reweights(self) -> bool:
        return self.reweight


@dataclass(kw_only=True)
class Cyclic(Reweighted):
    """Groups of consecutive clients are available in turn, each for `period` rounds."""

    name: str = "cyclic"
    groups: int = 4
    period: int = 1  # rounds
    by_round = True

    def __post_init__(self) -> None:
        require(self.groups >= 1, "participation.groups", self.groups, "a whole number >= 1")
        require(self.period >= 1, "participation.period", self.period, "a whole number >= 1")

    def available(self, seed: int, round_index: int, clients: int) -> Array | None:
        return np.array_split(np.arange(clients), self.groups)[round_index // self.period % self.groups]

    def response_rates(self, clients: int) -> Array:
        return np.full(clients, 1 / self.groups)

    def is_biased(self, clients: int) -> bool:
        return not self.reweight and clients % self.groups > 0

    def check(self, clients: int) -> None:
        require(self.groups <= clients, "participation.groups", self.groups, f"at most {clients}, the task's clients")


@dataclass(kw_only=True)
class Trace(Reweighted):
    """Availability from a CSV file with the columns client, start, end, or client, rounds (docs/systems.md)."""

    name: str = "trace"
    path: str = ""
    repeat: bool = True  # start over after the last round of the file; false: no client is available afterwards
    by_round = True

    def __post_init__(self) -> None:
        allowed = "a CSV file with the columns client, start, end, or client, rounds"
        require(bool(self.path), "participation.path", self.path, allowed)
        self._mask: Array | None = None

    def identity(self) -> dict[str, Any]:
        return {**asdict(self), "path": digest(Path(self.path), "participation.path")}

    def _rounds(self, clients: int) -> Array:
        """Return the availability [rounds, M] of all clients."""
        if self._mask is None:
            self._mask = read_trace(Path(self.path), clients, "participation.path")
        return self._mask

    def available(self, seed: int, round_index: int, clients: int) -> Array | None:
        mask = self._rounds(clients)
        if round_index >= len(mask) and not self.repeat:
            return np.empty(0, np.int64)
        return np.flatnonzero(mask[round_index % len(mask)])

    def response_rates(self, clients: int) -> Array:
        return self._rounds(clients).mean(axis=0)

    def is_biased(self, clients: int) -> bool:
        return not self.reweight and not self._rounds(clients).all()

    def check(self, clients: int) -> None:
        self._rounds(clients)


@dataclass(kw_only=True)
class Dropout(Reweighted):
    """Every sampled client drops out of the round with some probability, independently of all others."""

    name: str = "dropout"
    probability: float = 0.1
    path: str | None = None  # CSV file with the columns client, probability, which replaces `probability`

    def __post_init__(self) -> None:
        is_valid = 0 <= self.probability < 1
        require(is_valid, "participation.probability", self.probability, "a probability from 0 to below 1")
        self._all: Array | None = None

    def identity(self) -> dict[str, Any]:
        content = None if self.path is None else digest(Path(self.path), "participation.path")
        return {**asdict(self), "path": content}

    def _probabilities(self, clients: int) -> Array:
        if self._all is None:
            if self.path is None:
                self._all = np.full(clients, self.probability)
            else:
                self._all = read_probabilities(Path(self.path), clients, "participation.path")
        return self._all

    def responding(self, seed: int, round_index: int, invited: Array, clients: int) -> Array | None:
        draws = generator(seed, DROPOUTS, round_index).random(clients)  # one per client, invited or not
        return draws[invited] >= self._probabilities(clients)[invited]

    def response_rates(self, clients: int) -> Array:
        return 1 - self._probabilities(clients)

    def is_biased(self, clients: int) -> bool:
        return not self.reweight and len(np.unique(self._probabilities(clients))) > 1

    def check(self, clients: int) -> None:
        self._probabilities(clients)


all_participations: Registry[ClientParticipation] = Registry("participation", ClientParticipation, __package__)
