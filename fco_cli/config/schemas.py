"""The schemas of the configuration's groups, registered with Hydra.

The dataclasses of tasks, algorithms, regularizers, mirror maps, transforms and hyper-parameters are themselves the
schemas of their groups: a field is a key, its range is checked where it is declared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

import omegaconf.base
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import MISSING, DictConfig, OmegaConf

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.config.path_settings import PathSettings
from fco_cli.errors import require
from fco_cli.federation.settings import all_federations
from fco_cli.problem.mirror_maps import MIRRORS
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks import TASKS
from hydra_plugins.fco_launcher import FusedLauncher, GridSweeper

PLAIN = "of letters, digits, _, - and ., the first no .: it names files"
LARGEST_SCALE = 100


def is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*", name) is not None


@dataclass
class Selection:
    """How an experiment chooses its best learning rates: by the mean of a metric over the last rounds."""

    metric: str = MISSING
    mode: str = MISSING  # max or min
    last: int = MISSING  # rounds; 1 is the last evaluated round
    second: str = "objective"  # where that ties: the smallest of this; the ledger also says what it would have chosen

    def __post_init__(self) -> None:
        require(self.mode in ("max", "min", MISSING), "experiment.select.mode", self.mode, "max or min")
        sound = self.last == MISSING or 1 <= self.last < 2**63
        require(sound, "experiment.select.last", self.last, "a whole number >= 1")


@dataclass
class NearBest:
    """Learning rates around the best of the full grid: all that profile=quick runs."""

    client_lr: str = "0.001,0.01"
    server_lr: str = "0.1,1"


@dataclass
class Experiment:
    """What a report must know of an experiment; it cannot change a run's result."""

    name: str = MISSING
    title: str = MISSING
    select: Selection = field(default_factory=Selection)
    panels: list[str] = MISSING
    paper: str = ""  # the figure of the paper that this is
    twin_of: str = ""  # the experiment beside which it is drawn
    near_best: NearBest = field(default_factory=NearBest)

    def __post_init__(self) -> None:
        require(self.name == MISSING or is_plain(self.name), "experiment.name", self.name, PLAIN)

    def check(self, metrics: Collection[str]) -> None:
        """Refuse an experiment that speaks of metrics which its runs do not have."""
        known = [metric for metric in metrics if metric != "round"]
        chosen = [("experiment.select.metric", self.select.metric), ("experiment.select.second", self.select.second)]
        for key, metric in chosen + [("experiment.panels", panel) for panel in self.panels]:
            require(metric in known, key, metric, "one of " + ", ".join(known))


@dataclass
class Profile:
    """The `profile` group: how much of the paper's scale an experiment runs at."""

    name: str = MISSING
    scale: float = MISSING  # of the number of rounds
    outputs: str = MISSING  # where experiments leave their records
    note: str = ""  # what figures must say of it

    def __post_init__(self) -> None:
        require(self.name == MISSING or is_plain(self.name), "profile.name", self.name, PLAIN)
        sound = self.scale == MISSING or 0 < self.scale <= LARGEST_SCALE
        require(sound, "profile.scale", self.scale, f"a number above 0, at most {LARGEST_SCALE}")


@dataclass
class RunConfig:
    """One run, complete."""

    task: Any = MISSING
    algo: Any = MISSING
    regularizer: Any = MISSING
    mirror: Any = MISSING
    transform: Any = MISSING
    hparams: Any = MISSING
    federation: Any = MISSING
    seed: int = MISSING
    seeds: int | None = None  # with -m: so many seeds, from 0 on
    output_dir: str = MISSING
    force: bool = MISSING
    record_clients: bool = MISSING
    record_path: bool = MISSING
    dry_run: bool = MISSING
    threads: int | None = MISSING
    experiment: Experiment | None = None
    theory: Any = None  # in place of a run: experiment=theory, whose schema is that of fco_cli/theory
    path: Any = None  # likewise: experiment=path chooses a strength
    profile: Profile = field(default_factory=Profile)


def register() -> None:
    """Tell Hydra the schemas; the YAML files of conf/ refer to them as /schema/... and to rounds as ${at_scale:...}."""
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)
    _parse_once()
    for plugin in (FusedLauncher, GridSweeper):  # Hydra's own search misses them in an editable install
        Plugins.instance().register(plugin)
    store_schema("hparams", lambda: Hparams)
    store_schema("path", lambda: PathSettings)
    for group, kinds in families().items():
        for name, kind in kinds.items():
            store_schema(f"{group}/{name}", lambda kind=kind: kind)  # type: ignore[misc]
    store_schema("run", lambda: RunConfig, package="_global_")


def _parse_once() -> None:
    """To parse ${...} takes OmegaConf longer than to look up what it names, and a sweep's jobs all have the same."""
    if not hasattr(omegaconf.base.parse, "cache_info"):
        omegaconf.base.parse = lru_cache(maxsize=4096)(omegaconf.base.parse)


def store_schema(path: str, kind: Callable[[], type], package: str | None = None) -> None:
    """Tell Hydra a schema under /schema; ConfigStore.store would make it at once."""
    *groups, name = ("schema", *path.split("/"))
    place = ConfigStore.instance().repo
    for group in groups:
        place = place.setdefault(group, {})
    place[f"{name}.yaml"] = _Schema(f"{name}.yaml", kind, "/".join(groups), package)


class _Schema(ConfigNode):
    """Made when a configuration first asks for it: to make all of them takes as long as the rest of composing."""

    def __init__(self, name: str, kind: Callable[[], type], group: str, package: str | None) -> None:
        self.name, self.kind, self.group, self.package, self.provider = name, kind, group, package, None

    @cached_property
    def made(self) -> DictConfig:
        return OmegaConf.structured(self.kind())

    def __copy__(self) -> ConfigNode:  # what Hydra does to a node that it loads
        return ConfigNode(self.name, self.made, self.group, self.package, self.provider)

    def __deepcopy__(self, memo: object) -> _Schema:  # what it does to the whole store for every configuration
        return self


def families() -> dict[str, Mapping[str, Any]]:
    """The groups whose options have a schema each."""
    return {
        "task": TASKS,
        "algo": all_algorithms(),
        "regularizer": all_regularizers(),
        "mirror": MIRRORS,
        "transform": all_transforms(),
        "federation": all_federations(),
    }


def switches() -> frozenset[str]:
    """The keys that are true or false, of whatever option."""
    owners = [("", RunConfig), ("hparams.", Hparams)]
    owners += [(f"{group}.", kind) for group, kinds in families().items() for kind in kinds.values()]
    return frozenset(f"{prefix}{key.name}" for prefix, owner in owners for key in fields(owner) if key.type == "bool")


def _at_scale(rounds: int, *, _root_: DictConfig) -> int:
    """The profile's share of the paper's rounds."""
    return max(1, round(rounds * _root_.profile.scale))
