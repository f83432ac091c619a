"""The `federation` group of the configuration: whether the clients are in this process or at sites."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fco_cli.errors import require
from fco_cli.federation.masks import FEWEST
from fco_cli.federation.noise import EvaluationNoise
from fco_cli.problem.registry import members
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks import Task
from fco_cli.tasks.custom import Custom

if TYPE_CHECKING:
    from fco_cli.federation.coordinator.sites import Sites


@dataclass(kw_only=True)
class Federation:
    """Who holds the clients."""

    name: str

    def placed(self, task: Task, hparams: Hparams) -> Task:
        """The task, with its data where they are."""
        return task

    @property
    def apart(self) -> bool:
        return self.name != InThisProcess.name

    @property
    def masked(self) -> bool:
        return False

    @property
    def noise(self) -> EvaluationNoise | None:
        """On evaluations."""
        return None


@dataclass(kw_only=True)
class InThisProcess(Federation):
    """The simulation."""

    name: str = "none"


@dataclass(kw_only=True)
class Flare(Federation):
    """Sites that have joined by `fco-federate` (docs/federation.md)."""

    name: str = "flare"
    sites: list[str] = field(default_factory=list)
    home: str | None = None  # the coordinator's folder, with the lead's kit
    timeout: float = 60.0  # seconds to wait for an answer
    patience: float = 600.0  # and for the server, or a site, that is not there
    min_sites: int | None = None  # of a round; null: it needs all that were asked
    evaluation_noise: float | None = None  # on evaluations (noise.py); null: they are exact
    evaluation_norm: float = 1.0  # of what a site tells of a model, before it is weighted, if there is noise
    masks: bool = False  # whether sites hide their numbers in sums over all of them (masks.py)

    def __post_init__(self) -> None:
        different = len(set(self.sites)) == len(self.sites) >= 1
        require(different, "federation.sites", self.sites, "the names of sites, such as [north,south]")
        for key in ("timeout", "patience"):
            value = getattr(self, key)
            require(0 < value < math.inf, f"federation.{key}", value, "a number > 0, in seconds")
        fits = self.min_sites is None or 1 <= self.min_sites <= len(self.sites)
        require(fits, "federation.min_sites", self.min_sites, f"null or from 1 to {len(self.sites)}, the sites")
        _ = self.noise  # checks its numbers
        if self.masks:
            allowed = f"at least {FEWEST} with federation.masks: of two each knows the other's numbers from their sum"
            require(len(self.sites) >= FEWEST, "federation.sites", self.sites, allowed)
            allowed = "null with federation.masks, which cancel over all sites only"
            require(self.min_sites is None, "federation.min_sites", self.min_sites, allowed)

    @property
    def masked(self) -> bool:
        return self.masks

    @property
    def noise(self) -> EvaluationNoise | None:
        multiplier = self.evaluation_noise
        return None if multiplier is None else EvaluationNoise(self.evaluation_norm, multiplier)

    def placed(self, task: Task, hparams: Hparams) -> Task:
        from fco_cli.federation.coordinator.task import CustomAtSites

        require(isinstance(task, Custom), "task", task.name, "custom, whose data are the sites' own files")
        assert isinstance(task, Custom)
        require(task.path == "", "task.path", task.path, "left out: the rows are at the sites")
        bits = hparams.fraction_bits
        if self.masks:
            require(bits is not None, "hparams.fraction_bits", bits, "a number, such as 40, with federation.masks")
            everybody = hparams.sampled(len(self.sites)) == len(self.sites)
            allowed = "all with federation.masks, which cancel over all sites only"
            require(everybody, "hparams.clients_per_round", hparams.clients_per_round, allowed)
        if self.noise is not None:
            for key, wanted in (("standardize", False), ("fill", "refuse")):
                allowed = f"{str(wanted).lower()} with federation.evaluation_noise: of their rows sites tell nothing"
                require(getattr(task, key) == wanted, f"task.{key}", getattr(task, key), allowed)
        how = (self.timeout, self.patience, self.min_sites, bits if self.masks else None, self.noise)
        return CustomAtSites.of(task, _connection(tuple(sorted(self.sites)), self.home, *how))


_open: list[Sites] = []


@functools.cache  # one for all runs of a process
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

    place, ordered = home_of(None if home is None else Path(home)), list(names)
    link = functools.partial(FlareLink, place, ordered, patience)
    _open.append(Sites(ordered, link, timeout, patience, min_sites, bits, noise))
    return _open[-1]


def hang_up() -> None:
    """End the connections of this process, whose threads would keep it alive."""
    for sites in _open:
        sites.disconnect()


def home_of(given: Path | None) -> Path:
    """A party's folder: the one that was given, or the user's own."""
    from platformdirs import user_data_path

    return Path(os.path.realpath((given or user_data_path("fco", appauthor=False) / "federation").expanduser()))


def all_federations() -> dict[str, type[Federation]]:
    return members(Federation)
