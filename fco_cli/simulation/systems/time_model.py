"""The `time_model` group: seconds that a client needs for its part of a round, on a simulated network.

    latency + bytes_down / down_bandwidth + gradients * gradient_seconds * jitter + latency + bytes_up / up_bandwidth

`gradients` is the number of row gradients, bytes are those of metrics.csv. The server's own time is not counted.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fco_cli.errors import require
from fco_cli.problem.layout import Array
from fco_cli.problem.registry import Registry
from fco_cli.problem.streams import JITTER, SPEEDS, generator
from fco_cli.simulation.systems.tables import digest, read_speeds


class Speeds(NamedTuple):
    """Speeds of all clients."""

    gradient_seconds: Array  # [M], seconds per row gradient
    up_bandwidth: Array  # [M], bytes per second
    down_bandwidth: Array  # [M]
    latency: Array  # [M], seconds in one direction


@dataclass(kw_only=True)
class TimeModel:
    """Base class of the group; the dataclass fields are its keys."""

    name: str

    @property
    def is_timed(self) -> bool:
        return True

    @property
    def round_jitter(self) -> float:
        """Standard deviation of the logarithm of a factor of the computing time, drawn per round and client."""
        return 0.0

    def speeds(self, seed: int, clients: int) -> Speeds:
        """Return the speeds of all clients."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return the settings that the result depends on."""
        return asdict(self)


@dataclass(kw_only=True)
class NoTimeModel(TimeModel):
    """Time is not simulated."""

    name: str = "none"

    @property
    def is_timed(self) -> bool:
        return False


@dataclass(kw_only=True)
class Jittered(TimeModel):
    """Time model whose computing times vary between rounds."""

    jitter: float = 0.0

    def __post_init__(self) -> None:
        _at_least_zero("jitter", self.jitter)

    @property
    def round_jitter(self) -> float:
        return self.jitter


@dataclass(kw_only=True)
class Lognormal(Jittered):
    """Speeds with log-normal distributions: the given median times exp(sigma N(0, 1)); sigma = 0: equal clients."""

    name: str = "lognormal"
    gradient_seconds: float = 1e-3
    gradient_sigma: float = 0.5
    up_bandwidth: float = 1e6  # bytes per second
    down_bandwidth: float = 5e6
    bandwidth_sigma: float = 0.5  # common to both directions of a client
    latency: float = 0.05  # seconds in one direction
    latency_sigma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("gradient_seconds", "gradient_sigma", "bandwidth_sigma", "latency", "latency_sigma"):
            _at_least_zero(key, getattr(self, key))
        for key in ("up_bandwidth", "down_bandwidth"):
            value = getattr(self, key)
            require(0 < value < math.inf, f"time_model.{key}", value, "a number > 0, in bytes per second")

    def speeds(self, seed: int, clients: int) -> Speeds:
        draws = generator(seed, SPEEDS).standard_normal((clients, 3))
        gradient, bandwidth, latency = np.exp(
            draws.T * [[self.gradient_sigma], [self.bandwidth_sigma], [self.latency_sigma]]
        )
        return Speeds(
            self.gradient_seconds * gradient,
            self.up_bandwidth * bandwidth,
            self.down_bandwidth * bandwidth,
            self.latency * latency,
        )


@dataclass(kw_only=True)
class TimesFromFile(Jittered):
    """Speeds from a CSV file: client, gradient_seconds, up_bandwidth, down_bandwidth, latency."""

    name: str = "file"
    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = "a CSV file with the columns client, gradient_seconds, up_bandwidth, down_bandwidth, latency"
        require(bool(self.path), "time_model.path", self.path, allowed)

    def speeds(self, seed: int, clients: int) -> Speeds:
        return Speeds(**read_speeds(Path(self.path), clients, "time_model.path"))

    def identity(self) -> dict[str, Any]:
        return {**asdict(self), "path": digest(Path(self.path), "time_model.path")}


def _at_least_zero(key: str, value: float) -> None:
    require(0 <= value < math.inf, f"time_model.{key}", value, "a number >= 0")


class Clock:
    """Times of the clients' parts of a round, for one run."""

    def __init__(self, model: TimeModel, seed: int, clients: int) -> None:
        self.model, self.seed, self.clients = model, seed, clients
        self.speeds = model.speeds(seed, clients)

    def nanoseconds(
        self, index: int, clients: Array, gradients: Array, bytes_down: int, bytes_up: int | Array
    ) -> Array:
        """Return the times of clients [S] that compute `gradients` [S] row gradients: [S, J], or [S, 1].

        `index` is the number of the round. Whole numbers make sums of times exact.
        """
        computing, up, down, latency = (values[clients] for values in self.speeds)
        computing = computing * gradients
        if sigma := self.model.round_jitter:
            computing *= np.exp(sigma * generator(self.seed, JITTER, index).standard_normal(self.clients)[clients])
        own = 2 * latency + bytes_down / down + computing
        seconds = own[:, None] + np.atleast_1d(bytes_up)[None, :] / up[:, None]
        return np.minimum(np.rint(1e9 * seconds), LONGEST).astype(np.int64)


LONGEST = 2**53  # nanoseconds of one round of a client, 104 days

all_time_models: Registry[TimeModel] = Registry("time_model", TimeModel, __package__)
