"""The configuration's schemas, registered with Hydra, and the typed run that a composed configuration becomes.

The dataclasses of tasks, regularizers and settings are themselves the schemas of their groups: a field is a key,
its range is checked where it is declared.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from omegaconf import MISSING, DictConfig, OmegaConf

from fco_cli.algorithms import ALGORITHMS, Algorithm, Jobs
from fco_cli.errors import no_such_key, require
from fco_cli.files import as_yaml
from fco_cli.problem.mirror_maps import MIRRORS, Mirror
from fco_cli.problem.problem import Problem
from fco_cli.problem.regularizers import Regularizer, all_regularizers
from fco_cli.simulation.settings import Settings
from fco_cli.tasks import TASKS, Task
from fco_cli.theory.statements import Grid
from hydra_plugins.fco_launcher import FusedLauncher, GridSweeper


@dataclass
class Algo:
    """The `algo` group."""

    name: str = MISSING


@dataclass
class OptimumAlgo(Algo):
    """The `algo` group for the certified solver."""

    tolerance: float = MISSING
    max_iterations: int = MISSING

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "algo.tolerance", self.tolerance, "a number > 0")
        require(self.max_iterations >= 1, "algo.max_iterations", self.max_iterations, "a whole number >= 1")


@dataclass
class Selection:
    """How an experiment chooses its best learning rates: by the mean of a metric over the last rounds."""

    metric: str = MISSING
    mode: str = MISSING  # max or min
    last: int = MISSING  # rounds; 1 is the last evaluated round


@dataclass
class Experiment:
    """What a report must know of an experiment; it cannot change a run's result."""

    name: str = MISSING
    title: str = MISSING
    select: Selection = field(default_factory=Selection)
    panels: list[str] = MISSING


@dataclass
class Profile:
    """The `profile` group: how much of the paper's scale an experiment runs at."""

    name: str = MISSING
    scale: float = MISSING  # of the number of rounds
    outputs: str = MISSING  # where experiments leave their records


@dataclass
class RunConfig:
    """One run, complete."""

    task: Any = MISSING
    algo: Any = MISSING
    regularizer: Any = MISSING
    mirror: Any = MISSING
    hparams: Any = MISSING
    seed: int = MISSING
    output_dir: str = MISSING
    force: bool = MISSING
    record_clients: bool = MISSING
    dry_run: bool = MISSING
    threads: int | None = MISSING
    experiment: Experiment | None = None
    theory: Grid | None = None  # in place of a run: experiment=theory
    profile: Profile = field(default_factory=Profile)


def register() -> None:
    """Tell Hydra the schemas; the YAML files of conf/ refer to them as /schema/... and to rounds as ${at_scale:...}."""
    OmegaConf.register_new_resolver("at_scale", _at_scale, replace=True)
    for plugin in (FusedLauncher, GridSweeper):  # Hydra's own search misses them in an editable install
        Plugins.instance().register(plugin)
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=RunConfig, package="_global_")
    store.store(group="schema", name="hparams", node=Settings)
    store.store(group="schema", name="theory", node=Grid)
    store.store(group="schema/algo", name="plain", node=Algo)
    store.store(group="schema/algo", name="optimum", node=OptimumAlgo)
    for name, task in TASKS.items():
        store.store(group="schema/task", name=name, node=task)
    for name, regularizer in all_regularizers().items():
        store.store(group="schema/regularizer", name=name, node=regularizer)
    for name, mirror in MIRRORS.items():
        store.store(group="schema/mirror", name=name, node=mirror)


def _at_scale(rounds: int, *, _root_: DictConfig) -> int:
    """The profile's share of the paper's rounds."""
    return max(1, round(rounds * _root_.profile.scale))


@dataclass
class Run:
    """A composed configuration, typed and checked: what one run computes, and where it leaves its record."""

    task: Task
    algo: Algo
    regularizer: Regularizer
    mirror: Mirror
    hparams: Settings
    seed: int
    output_dir: Path
    force: bool
    record_clients: bool
    threads: int | None
    select: Selection | None  # how the experiment it belongs to, if any, chooses learning rates
    yaml: str  # the resolved configuration

    @classmethod
    def of(cls, config: DictConfig) -> Run:
        """Check everything that can be known before any data are built."""
        parts = {key: OmegaConf.to_object(config[key]) for key in ("task", "algo", "regularizer", "mirror", "hparams")}
        for key, part in parts.items():  # Hydra lets +key=value add keys that no schema knows
            _refuse_strangers(f"{key}.", config[key], part)
        _refuse_strangers("", config, RunConfig)
        run = cls(
            **parts,  # type: ignore[arg-type]
            seed=config.seed,
            output_dir=Path(config.output_dir),
            force=config.force,
            record_clients=config.record_clients,
            threads=config.threads,
            select=OmegaConf.to_object(config.experiment.select) if config.experiment else None,  # type: ignore[arg-type]
            yaml=as_yaml(OmegaConf.to_container(config, resolve=True)),
        )
        is_folder_name = re.fullmatch(r"[\w-]+", run.task.name) is not None
        require(is_folder_name, "task.name", run.task.name, "of letters, digits, _ and -: it names a folder")
        require(0 <= run.seed < 2**63, "seed", run.seed, "a whole number >= 0")
        require(run.threads is None or run.threads >= 1, "threads", run.threads, "null or a whole number >= 1")
        run.mirror.primal(run.regularizer)  # refuses a pair without a closed form
        if run.task.clients_available is not None:
            run.check_clients(run.task.clients_available)
        return run

    def check_clients(self, available: int) -> None:
        """A round cannot sample more clients than there are."""
        sampled = self.hparams.clients_per_round
        if self.algorithm.federated:
            require(
                sampled <= available, "hparams.clients_per_round", sampled, f"at most {available}, the task's clients"
            )

    @property
    def algorithm(self) -> type[Algorithm]:
        require(self.algo.name in ALGORITHMS, "algo.name", self.algo.name, "one of " + ", ".join(ALGORITHMS))
        return ALGORITHMS[self.algo.name]

    def make_algorithm(self, problem: Problem, jobs: Jobs) -> Algorithm:
        options = {key: value for key, value in asdict(self.algo).items() if key != "name"}
        return self.algorithm(problem, jobs, **options)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the result depends on, and nothing else: paths, threads and unused settings are left out."""
        hparams = {key: value for key, value in asdict(self.hparams).items() if key in self.algorithm.settings}
        parts = {key: asdict(getattr(self, key)) for key in ("algo", "regularizer", "mirror")}
        parts["task"] = self.task.identity()
        # A record without the clients' models is no record of a run that asks for them.
        extra = {"record_clients": True} if self.record_clients else {}
        return parts | {"hparams": hparams, "seed": self.seed} | extra

    @cached_property
    def run_id(self) -> str:
        return _digest(self.identity)

    @property
    def stack_key(self) -> str:
        """Runs with the same key differ only in what may vary along the job axis."""
        common = {**self.identity, "regularizer": self.regularizer.kind, "hparams": dict(self.identity["hparams"])}
        for key in ("client_lr", "server_lr"):
            common["hparams"].pop(key, None)
        return _digest(common)

    @property
    def folder(self) -> Path:
        return self.output_dir / self.task.name / self.algo.name / self.run_id

    def describe(self) -> str:
        """One line for people."""
        rates = f"client_lr {self.hparams.client_lr:g}"
        if self.algorithm.federated:
            rates += f", server_lr {self.hparams.server_lr:g}"
        psi = ", ".join(f"{key} {value}" for key, value in asdict(self.regularizer).items() if key != "name")
        line = f"{self.task.name} with {self.algo.name}: {self.regularizer.name} {psi}".rstrip()
        if self.mirror.name != "euclidean":
            line += f", mirror {self.mirror.name}"
        return (
            f"{line}, {rates}, seed {self.seed}"
            if "client_lr" in self.algorithm.settings
            else f"{line}, seed {self.seed}"
        )


def _refuse_strangers(prefix: str, config: DictConfig, schema: Any) -> None:
    known = [field.name for field in fields(schema)]
    for key in set(config) - set(known):
        raise no_such_key(f"{prefix}{key}", known)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
