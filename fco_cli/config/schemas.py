"""Schemas of the configuration groups, registered with Hydra.

The dataclasses of tasks, algorithms, regularizers, mirror maps, transforms and hyperparameters are the schemas of their
groups: a field is a key, and the dataclass checks its range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import MISSING, DictConfig, OmegaConf

from fco_cli.algorithms import all_algorithms
from fco_cli.algorithms.transforms import all_transforms
from fco_cli.config.search import Search
from fco_cli.errors import require
from fco_cli.federation.settings import all_federations
from fco_cli.help import add_option, shipped_options
from fco_cli.problem.data import FOLD_UNITS
from fco_cli.problem.mirror_maps import all_mirrors
from fco_cli.problem.models.choices import all_models
from fco_cli.problem.regularizers import all_regularizers
from fco_cli.simulation.hparams import Hparams
from fco_cli.simulation.systems import all_aggregations, all_participations, all_time_models
from fco_cli.tasks import all_tasks
from fco_cli.tracking import all_trackings
from hydra_plugins.fco_launcher import FusedLauncher, GridSweeper
from hydra_plugins.fco_launcher.search import SearchSweeper

FILE_NAME = "a file name of letters, digits, _, - and ., not starting with ."
LARGEST_SCALE = 100
MAX_PATH_MODELS = 10_000  # models
TIME_TRANSFORMS = ("km", "identity", "rank", "log")  # of the test of proportional hazards
GLM_METHODS, GLM_COVARIANCES = ("auto", "wald", "debiased"), ("model", "hc0", "hc1", "cluster")


def is_file_name(name: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*", name) is not None


@dataclass
class Selection:
    """Rule by which an experiment selects learning rates: the mean of a metric over the last rounds."""

    metric: str = MISSING
    mode: str = MISSING  # max or min
    last: int = MISSING  # rounds; 1 is the last evaluated round
    second: str = "objective"  # metric to be minimized in case of ties; the ledger also reports its selection

    def __post_init__(self) -> None:
        require(self.mode in ("max", "min", MISSING), "experiment.select.mode", self.mode, "max or min")
        is_valid = self.last == MISSING or 1 <= self.last < 2**63
        require(is_valid, "experiment.select.last", self.last, "a whole number >= 1")


@dataclass
class NearBest:
    """Learning rates near the best of the full grid, used by profile=quick."""

    client_lr: str = "0.001,0.01"
    server_lr: str = "0.1,1"


@dataclass
class Experiment:
    """Settings of an experiment for its report; they do not affect the results of runs."""

    name: str = MISSING
    title: str = MISSING
    select: Selection = field(default_factory=Selection)
    panels: list[str] = MISSING
    paper: str = ""  # figure of the paper that the experiment reproduces
    twin_of: str = ""  # experiment next to whose curves those of this one are drawn
    near_best: NearBest = field(default_factory=NearBest)

    def __post_init__(self) -> None:
        require(self.name == MISSING or is_file_name(self.name), "experiment.name", self.name, FILE_NAME)

    def check(self, metrics: Collection[str]) -> None:
        """Raise UserError if the experiment refers to a metric that its runs do not have."""
        known = [metric for metric in metrics if metric != "round"]
        selected = [("experiment.select.metric", self.select.metric), ("experiment.select.second", self.select.second)]
        for key, metric in selected + [("experiment.panels", panel) for panel in self.panels]:
            require(metric in known, key, metric, "one of " + ", ".join(known))


@dataclass
class Profile:
    """The `profile` group: the scale of an experiment relative to the paper's."""

    name: str = MISSING
    scale: float = MISSING  # factor of the number of rounds
    outputs: str = MISSING  # folder of the experiments' records
    note: str = ""  # printed on figures

    def __post_init__(self) -> None:
        require(self.name == MISSING or is_file_name(self.name), "profile.name", self.name, FILE_NAME)
        is_valid = self.scale == MISSING or 0 < self.scale <= LARGEST_SCALE
        require(is_valid, "profile.scale", self.scale, f"a number above 0, at most {LARGEST_SCALE}")


@dataclass
class RunConfig:
    """Schema of the complete configuration of a run."""

    task: Any = MISSING
    algo: Any = MISSING
    model: Any = MISSING
    regularizer: Any = MISSING
    mirror: Any = MISSING
    transform: Any = MISSING
    hparams: Any = MISSING
    federation: Any = MISSING
    participation: Any = MISSING
    time_model: Any = MISSING
    aggregation: Any = MISSING
    tracking: Any = MISSING
    seed: int = MISSING
    seeds: int | None = None  # with -m: number of seeds, starting at 0
    output_dir: str = MISSING
    force: bool = MISSING
    record_clients: bool = MISSING
    record_path: bool = MISSING
    dry_run: bool = MISSING
    plugins: list[str] = field(default_factory=list)  # loaded before composition (fco_cli/plugins.py)
    threads: int | None = MISSING
    experiment: Experiment | None = None
    theory: Any = None  # settings of experiment=theory (fco_cli/theory), which replaces the run
    path: Any = None  # settings of experiment=path, which replaces the run
    glm: Any = None  # settings of experiment=glm, which replaces the run
    table1: Any = None  # settings of experiment=table1, which replaces the run
    search: Search = field(default_factory=Search)  # settings of hydra/sweeper=search
    profile: Profile = field(default_factory=Profile)


def register() -> None:
    """Register schemas, resolvers and plugins with Hydra.

    The YAML files of conf/ refer to schemas as /schema/..., scale numbers of rounds by ${at_scale:...} and take the
    number of seeds of a profile, if it sets one, by ${seeds_or:...}.
    """
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)
    OmegaConf.register_new_resolver("seeds_or", _seeds_or, replace=True)
    for plugin in (FusedLauncher, GridSweeper, SearchSweeper):  # Hydra does not find them in an editable install
        Plugins.instance().register(plugin)
    store_schema("hparams", lambda: Hparams)
    store_schema("path", lambda: PathSettings)
    store_schema("glm", lambda: GlmSettings)
    store_schema("table1", lambda: Table1Settings)
    for group, kinds in families().items():
        for name, kind in kinds.items():
            store_schema(f"{group}/{name}", lambda kind=kind: kind)  # type: ignore[misc]
            if not kind.__module__.startswith("fco_cli.") and name not in shipped_options(group):
                _store(group, name, lambda group=group, kind=kind: option_of(group, kind))  # type: ignore[misc]
                add_option(group, name)
    store_schema("run", lambda: RunConfig, package="_global_")


def store_schema(path: str, kind: Callable[[], type], package: str | None = None) -> None:
    """Register a schema under /schema; unlike ConfigStore.store, do not build it yet."""
    group, _, name = f"schema/{path}".rpartition("/")
    _store(group, name, lambda: OmegaConf.structured(kind()), package)


def option_of(group: str, kind: type) -> DictConfig:
    """Return the option of a class without a YAML file; a strength or radius without default is the task's."""
    option = OmegaConf.structured(kind)
    for key in ("strength", "radius"):
        if group == "regularizer" and OmegaConf.is_missing(option, key):
            option[key] = f"${{task.{key}}}"
    return option


def _store(group: str, name: str, node: Callable[[], DictConfig], package: str | None = None) -> None:
    repository = ConfigStore.instance().repo
    for part in group.split("/"):
        repository = repository.setdefault(part, {})
    repository[f"{name}.yaml"] = _Schema(f"{name}.yaml", node, group, package)


class _Schema(ConfigNode):
    """Schema that is built on first use; building all schemas would double the time of a composition."""

    def __init__(self, name: str, build: Callable[[], DictConfig], group: str, package: str | None) -> None:
        self.name, self.build, self.group, self.package, self.provider = name, build, group, package, None

    @cached_property
    def config(self) -> DictConfig:
        return self.build()

    def __copy__(self) -> ConfigNode:  # called by Hydra for every node that it loads
        return ConfigNode(self.name, self.config, self.group, self.package, self.provider)

    def __deepcopy__(self, memo: object) -> _Schema:  # called by Hydra on the whole store for every configuration
        return self


def families() -> dict[str, Mapping[str, Any]]:
    """Return the groups whose options have separate schemas, with the class of each option."""
    return {
        "task": all_tasks(),
        "algo": all_algorithms(),
        "model": all_models(),
        "regularizer": all_regularizers(),
        "mirror": all_mirrors(),
        "transform": all_transforms(),
        "federation": all_federations(),
        "participation": all_participations(),
        "time_model": all_time_models(),
        "aggregation": all_aggregations(),
        "tracking": all_trackings(),
    }


def switches() -> frozenset[str]:
    """Return the Boolean keys of all options."""
    owners = [("", RunConfig), ("hparams.", Hparams)]
    owners += [(f"{group}.", kind) for group, kinds in families().items() for kind in kinds.values()]
    return frozenset(f"{prefix}{key.name}" for prefix, owner in owners for key in fields(owner) if key.type == "bool")


def _at_scale(rounds: int, *, _root_: DictConfig) -> int:
    """Return the number of rounds times the scale of the profile."""
    return max(1, round(rounds * _root_.profile.scale))


def _seeds_or(seeds: int, *, _root_: DictConfig) -> int:
    """Return the number of seeds that the profile or the user sets, else `seeds` at the profile's scale."""
    return _root_.seeds or _at_scale(seeds, _root_=_root_)


@dataclass
class PathSettings:
    """Settings of a regularization path (docs/path.md)."""

    strengths: int = 100  # number of strengths, equally spaced on a logarithmic scale
    ratio: float = 0.01  # smallest strength relative to the largest
    largest: float | None = None  # null: the smallest strength with a null model; for a ball the largest active radius
    folds: int = 10  # number of folds of the cross-validation
    by: str = "rows"  # unit that a fold holds out: rows of every client, clients, each_client (one at a time)
    tolerance: float | None = None  # on the relative KKT residual along the path; null: depends on the method
    algo: str = "auto"  # method; auto: the cheapest exact one, or that of algo=... if it is not fista
    subsamples: int = 0  # number of complementary pairs of halves in stability selection
    threshold: float = 0.75  # selection frequency at or above which a feature is stable
    errors: float = 1.0  # bound on the expected number of false selections, which limits the part of the path used

    def __post_init__(self) -> None:
        for key, least in (("strengths", 2), ("folds", 2), ("subsamples", 0)):
            allowed = f"a whole number from {least} to {MAX_PATH_MODELS}"
            require(least <= getattr(self, key) <= MAX_PATH_MODELS, f"path.{key}", getattr(self, key), allowed)
        require(0 < self.ratio < 1, "path.ratio", self.ratio, "above 0, below 1")
        is_valid = self.tolerance is None or 0 < self.tolerance < 1
        require(is_valid, "path.tolerance", self.tolerance, "null, or above 0 and below 1")
        require(0.5 < self.threshold <= 1, "path.threshold", self.threshold, "above 0.5, at most 1")
        require(0 < self.errors < math.inf, "path.errors", self.errors, "a number > 0")
        require(self.by in FOLD_UNITS, "path.by", self.by, "one of " + ", ".join(FOLD_UNITS))
        is_valid = self.largest is None or 0 < self.largest < math.inf
        require(is_valid, "path.largest", self.largest, "null or a number > 0")


@dataclass
class GlmSettings:
    """Settings of experiment=glm."""

    method: str = "auto"  # wald: maximum likelihood; debiased: after the lasso; auto: by the regularizer
    covariance: str = "model"  # of the printed table: model, hc0, hc1 or cluster (by client); the record has all
    level: float = 0.95  # confidence level of the intervals
    drop: list[str] = field(default_factory=list)  # features or columns that are left out
    exposure: str | None = None  # column whose logarithm is added to the scores of counts
    meta: bool = True  # add the clients' own fits and their meta-analysis
    tests: bool = True  # likelihood-ratio tests of the columns, which need a fit without each
    robust: bool = True  # add robust covariance matrices, which need sums of outer products of gradients
    horizon: float | None = None  # of a Cox model: time until which predicted risks are compared with observed ones
    time_transform: str = "km"  # of a Cox model: g(t) in the test of proportional hazards
    min_cell: int = 0  # of a Cox model: smallest number of events in an interval of the curves; 0: exact times

    def __post_init__(self) -> None:
        require(self.method in GLM_METHODS, "glm.method", self.method, "one of " + ", ".join(GLM_METHODS))
        allowed = "one of " + ", ".join(GLM_COVARIANCES)
        require(self.covariance in GLM_COVARIANCES, "glm.covariance", self.covariance, allowed)
        require(0 < self.level < 1, "glm.level", self.level, "above 0, below 1")
        allowed = "model with glm.robust=false"
        require(self.robust or self.covariance == "model", "glm.covariance", self.covariance, allowed)
        is_valid = self.horizon is None or 0 < self.horizon < math.inf
        require(is_valid, "glm.horizon", self.horizon, "null or a time > 0")
        allowed = "one of " + ", ".join(TIME_TRANSFORMS)
        require(self.time_transform in TIME_TRANSFORMS, "glm.time_transform", self.time_transform, allowed)
        require(0 <= self.min_cell < 2**31, "glm.min_cell", self.min_cell, "a whole number >= 0")


@dataclass
class Table1Settings:
    """Settings of experiment=table1."""

    columns: list[str] = field(default_factory=list)  # columns of the table, in this order; empty: all
    clients: int = 12  # columns of clients at most; smaller clients are pooled in one column
    min_cell: int = 10  # counts from 1 to below are suppressed, with others that would reveal them; 0: none
    quartiles: bool = True  # medians and quartiles; sites answer counts of values for them
    smd: bool = True  # standardized mean differences between clients
    p: bool = False  # p-values of differences between clients

    def __post_init__(self) -> None:
        require(1 <= self.clients <= 100, "table1.clients", self.clients, "a whole number from 1 to 100")
        require(0 <= self.min_cell < 2**31, "table1.min_cell", self.min_cell, "a whole number >= 0")
