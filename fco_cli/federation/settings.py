"""Configuration group `federation`: clients in this process or at remote sites."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.algorithms.transforms import Transform
from fco_cli.errors import require
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.federation.sharing import MIN_SITES, threshold
from fco_cli.problem.registry import Registry
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks import Task
from fco_cli.tasks.tabular import Custom, Tabular

if TYPE_CHECKING:
    from fco_cli.federation.coordinator.sites import Sites


@dataclass(kw_only=True)
class Federation:
    """Base class of the group's members."""

    name: str

    def bind_task(self, task: Task, hparams: Hparams, transform: Transform) -> Task:
        """Return the task, connected to the sites' data if clients are remote.

        If the transform protects rows, noise on evaluations hides single rows instead of whole sites. If messages are
        added in fixed point, the rows of tables are prepared from exact sums, as with masks.
        """
        exact = isinstance(task, Tabular) and hparams.fraction_bits is not None
        return replace(task, exact_sums=True) if exact else task  # type: ignore[call-arg]

    @property
    def is_remote(self) -> bool:
        return self.name != NoFederation.name

    @property
    def masked(self) -> bool:
        return False

    @property
    def noise(self) -> EvaluationNoise | None:
        """Noise on evaluations, or None."""
        return None


@dataclass(kw_only=True)
class NoFederation(Federation):
    """Simulation: all clients are in this process."""

    name: str = "none"


@dataclass(kw_only=True)
class Flare(Federation):
    """Sites joined by `fco-federate`, connected by NVIDIA FLARE (docs/federation.md)."""

    name: str = "flare"
    sites: list[str] = field(default_factory=list)
    home: str | None = None  # the coordinator's folder, with the lead's kit
    timeout: float = 60.0  # seconds to wait for a response
    patience: float = 600.0  # seconds to wait for an unavailable server or site
    min_sites: int | None = None  # responses that a round needs; null: all
    evaluation_noise: float | None = None  # noise multiplier of evaluations (noise.py); null: no noise
    evaluation_norm: float = 1.0  # clipping norm of a site's evaluation before weighting, used with noise
    masks: bool = False  # secure aggregation (masks.py)

    def __post_init__(self) -> None:
        distinct = len(set(self.sites)) == len(self.sites) >= 1
        require(distinct, "federation.sites", self.sites, "distinct names of sites, such as [north,south]")
        for key in ("timeout", "patience"):
            value = getattr(self, key)
            require(0 < value < math.inf, f"federation.{key}", value, "a number > 0, in seconds")
        fits = self.min_sites is None or 1 <= self.min_sites <= len(self.sites)
        allowed = f"null or from 1 to {len(self.sites)}, the number of sites"
        require(fits, "federation.min_sites", self.min_sites, allowed)
        _ = self.noise  # raises UserError if out of range
        if self.masks:
            allowed = (
                f"at least {MIN_SITES} with federation.masks: of two sites, each could compute the other's numbers"
            )
            require(len(self.sites) >= MIN_SITES, "federation.sites", self.sites, allowed)
            least = threshold(len(self.sites))
            allowed = (
                f"null or from {least} to {len(self.sites)} with federation.masks: sums of fewer sites disclose more"
            )
            require(self.min_sites is None or self.min_sites >= least, "federation.min_sites", self.min_sites, allowed)

    @property
    def masked(self) -> bool:
        return self.masks

    @property
    def noise(self) -> EvaluationNoise | None:
        multiplier = self.evaluation_noise
        return None if multiplier is None else EvaluationNoise(self.evaluation_norm, multiplier)

    def bind_task(self, task: Task, hparams: Hparams, transform: Transform) -> Task:
        from fco_cli.federation.coordinator.task import CustomAtSites

        allowed = "custom with federation=flare: the data are the sites' files"
        require(isinstance(task, Custom), "task", task.name, allowed)
        task = super().bind_task(task, hparams, transform)
        assert isinstance(task, Custom)
        require(task.path == "", "task.path", task.path, "omitted: the rows are at the sites")
        bits = hparams.fraction_bits
        if self.masks:
            require(bits is not None, "hparams.fraction_bits", bits, "a number, such as 40, with federation.masks")
            full = hparams.sampled(len(self.sites)) == len(self.sites)
            allowed = "all with federation.masks: masks cancel only in the sum over all sites"
            require(full, "hparams.clients_per_round", hparams.clients_per_round, allowed)
        summed = self.min_sites or len(self.sites)
        allowed = f"from 1 to {summed}, the sites that every sum needs" if self.masks else "1 without federation.masks"
        fits = transform.shares <= (summed if self.masks else 1)
        require(fits, "transform.noise_shares", transform.shares, allowed)
        if self.noise is not None and task.ranges is None:
            reason = "or task.ranges given, with federation.evaluation_noise: summaries of rows would have no noise"
            for key, needed in (("standardize", False), ("fill", "refuse")):
                require(
                    getattr(task, key) == needed, f"task.{key}", getattr(task, key), f"{str(needed).lower()} {reason}"
                )
        noise = (
            None if self.noise is None else replace(self.noise, by_row=transform.protects_rows, shares=transform.shares)
        )
        options = (self.timeout, self.patience, self.min_sites, bits if self.masks else None, noise)
        return CustomAtSites.of(task, _connection(tuple(sorted(self.sites)), self.home, *options))


_connections: list[Sites] = []


@functools.cache  # one connection for all runs of a process
def _connection(
    names: tuple[str, ...],
    home: str | None,
    timeout: float,
    patience: float,
    min_sites: int | None,
    bits: int | None,
    noise: EvaluationNoise | None,
) -> Sites:
    from fco_cli.federation.coordinator.sites import Sites
    from fco_cli.federation.flare.link import FlareLink

    folder, ordered = party_home(None if home is None else Path(home)), list(names)
    link = functools.partial(FlareLink, folder, ordered, patience, min_sites)
    _connections.append(Sites(ordered, link, timeout, patience, min_sites, bits, noise))
    return _connections[-1]


def close_connection() -> None:
    """Close all connections of this process; their threads would keep it alive."""
    for sites in _connections:
        sites.disconnect()


def party_home(given: Path | None) -> Path:
    """Return the party's folder: `given`, or the default in the user's data folder."""
    from platformdirs import user_data_path

    return Path(os.path.realpath((given or user_data_path("fco", appauthor=False) / "federation").expanduser()))


all_federations: Registry[Federation] = Registry("federation", Federation)
