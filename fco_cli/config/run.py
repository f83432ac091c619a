"""The typed and validated configuration of a run."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from omegaconf import DictConfig, ListConfig, OmegaConf

from fco_cli.algorithms import Algorithm
from fco_cli.algorithms.transforms import Transform
from fco_cli.client_rate import relative
from fco_cli.code_digest import Definition
from fco_cli.config.identity import Identity, check_code, identity_of
from fco_cli.config.schemas import Experiment, RunConfig
from fco_cli.config.search import Search
from fco_cli.errors import no_such_key, require
from fco_cli.federation.settings import Federation
from fco_cli.files import as_yaml
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.registry import load_entry_points, load_plugin, loaded_plugins
from fco_cli.problem.regularizers import Regularizer
from fco_cli.results import NETWORK
from fco_cli.simulation.hparams import AUTO, Hparams
from fco_cli.simulation.systems import Network
from fco_cli.tasks import Task

LARGEST = 2**63  # integers must be below
ELEMENTS = {str: "a text", int: "a whole number", float: "a number"}
BYTES_PER_EVALUATION = 24 * 32  # 24 metrics as Python numbers
PARTS = ("task", "algo", "model", "regularizer", "mirror", "transform", "hparams", "federation", *NETWORK)


@dataclass
class Run:
    """Configuration of one run."""

    task: Task
    algo: Algorithm
    regularizer: Regularizer
    mirror: Mirror
    transform: Transform
    hparams: Hparams
    federation: Federation
    network: Network
    seed: int
    output_dir: Path
    force: bool
    record_clients: bool
    record_path: bool
    threads: int | None
    experiment: Experiment | None  # the experiment that the run belongs to
    search: Search  # settings of a search, which do not affect the result
    resolved: dict[str, Any]  # the resolved configuration

    execution: ClassVar[Definition] = ("fco_cli.simulation.execute", "execute")  # function that writes the record
    settings: ClassVar[dict[str, type]] = {}  # schemas of the fields that a kind of experiment adds

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """Return the run of a configuration; raise UserError for any error that does not depend on the data."""
        check_profile(config)
        experiment = None if config.experiment is None else typed_group(config, "experiment")
        if experiment is not None:
            _refuse_unknown_keys("experiment.select.", config.experiment.select, experiment.select)
        if config.federation.name != "none" and OmegaConf.is_missing(config.task, "path"):
            config = config.copy()
            config.task.path = ""  # the rows are at the sites
        parts: dict[str, Any] = {key: _as_object(config, key) for key in PARTS}
        for key, part in parts.items():  # +key=value can add keys that are not in the schema
            _refuse_unknown_keys(f"{key}.", config[key], part)
        _refuse_unknown_keys("", config, RunConfig)
        for key in PARTS:
            _refuse_huge_integers(key, parts[key])
        for key in ("algo", "model", "regularizer", "mirror", "transform", "federation", *NETWORK):
            name, own = parts[key].name, type(parts[key]).name
            require(name == own, f"{key}.name", name, f"{own}, as set by {key}={own}; use {key}=... to choose another")
        parts["task"].model = parts.pop("model")
        parts["task"] = parts["federation"].bind_task(parts["task"], parts["hparams"], parts["transform"])
        network = Network(*(parts.pop(key) for key in NETWORK))
        run = cls(
            **parts,
            network=network if parts["algo"].federated else Network(),
            seed=config.seed,
            output_dir=Path(config.output_dir),
            force=config.force,
            record_clients=config.record_clients,
            record_path=config.record_path,
            threads=config.threads,
            experiment=experiment,
            search=typed_group(config, "search"),
            resolved={key: value for key, value in plain(config, resolve=True).items() if key != "search"},
            **cls._own_settings(config),
        )
        is_folder_name = re.fullmatch(r"[\w-]+", run.task.name) is not None
        require(is_folder_name, "task.name", run.task.name, "a folder name of letters, digits, _ and -")
        run.check_seed()
        is_folder = str(run.output_dir) != "." and config.output_dir.isprintable()
        require(is_folder, "output_dir", config.output_dir, "a folder")
        require(config.seeds is None or config.seeds >= 1, "seeds", config.seeds, "null or a whole number >= 1")
        require(run.threads is None or run.threads >= 1, "threads", run.threads, "null or a whole number >= 1")
        run.check_combinations()
        run.mirror.primal(run.regularizer)  # raises UserError for a pair without a closed form
        run.algo.check_pair(run.regularizer, run.mirror)
        if run.hparams.until_converged:
            run.check_auto_rounds()
        run.method.check_transform(run.hparams.weighting)
        if run.task.clients_available is not None:
            run.check_clients(run.task.clients_available)
        run.check_memory()
        run.search.check_run(run.hparams)
        return run

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to unpickle the run: its plug-ins are loaded before its state, which has their classes."""
        paths = {source: plugin.path for source, plugin in loaded_plugins(self.plugins).items()}
        return _empty_run, (type(self), paths), self.__dict__

    @property
    def plugins(self) -> list[str]:
        """Files and modules that were loaded for this run."""
        return self.resolved.get("plugins", [])

    @classmethod
    def _own_settings(cls, config: DictConfig) -> dict[str, Any]:
        """Return the settings of a kind of experiment, by the name of its field."""
        own = {}
        for key, schema in cls.settings.items():
            is_valid = OmegaConf.get_type(config, key) is schema
            require(is_valid, key, config[key], f"null: experiment={key} brings it")
            own[key] = typed_group(config, key)
        return own

    def own_identity(self) -> dict[str, Any]:
        """Return the settings that a kind of experiment adds to the identity."""
        return {key: asdict(getattr(self, key)) for key in self.settings}

    @property
    def selected_parameter(self) -> str | None:
        """Number of the regularizer that is selected and therefore not part of the identity."""
        return None

    def with_numbers(self, numbers: Mapping[str, int | float]) -> Self:
        """Return a copy with other learning rates or seed, which are checked as in `of`."""
        rates: dict[str, Any] = {key.removeprefix("hparams."): rate for key, rate in numbers.items() if key != "seed"}
        other = copy.copy(self)
        other.__dict__.pop("identity", None)
        other.hparams, other.seed = replace(self.hparams, **rates), int(numbers.get("seed", self.seed))
        other.resolved = replace_numbers(self.resolved, numbers)
        other.check_seed()
        return other

    def check_seed(self) -> None:
        require(0 <= self.seed < LARGEST, "seed", self.seed, "a whole number from 0 to 2^63 - 1")

    def check_auto_rounds(self) -> None:
        """Raise UserError if rounds=auto is combined with settings that need a known last round."""
        number = "a whole number >= 1: "
        is_exact = self.federation.noise is None
        allowed = f"{number}convergence cannot be tested with noisy evaluations"
        require(is_exact, "hparams.rounds", AUTO, allowed)
        require(self.algo.personal is None, "hparams.rounds", AUTO, f"{number}{self.algo.name} has personal models")
        for key in ("record_clients", "record_path"):
            require(not getattr(self, key), "hparams.rounds", AUTO, f"{number}{key}=true needs a known last round")
        allowed = f"{number}the rounds until convergence would disclose rows that transform={self.transform.name} hides"
        require(not self.method.transform.protects_rows, "hparams.rounds", AUTO, allowed)

    def check_combinations(self) -> None:
        """Raise UserError for settings that exclude each other.

        With remote sites, no setting may need rows or models of single clients outside of their sites.
        """
        model, rate = self.task.model, self.hparams.client_lr
        if self.method.transform.protects_rows and "client_lr" in self.algo.uses:
            allowed = f"a number > 0: L would disclose rows that transform={self.transform.name} hides"
            require(relative(rate) is None, "hparams.client_lr", rate, allowed)
        noise, allowed = self.task.preparation_noise, "null unless transform=row_clip_noise, whose epsilon includes it"
        require(noise is None or self.method.transform.protects_rows, "task.moments_noise", noise, allowed)
        self.network.check(self.method, self.record_clients)
        if self.federation.is_remote:
            self.network.check_absent("federation=flare")
            require(model.name == "auto", "model", model.name, "auto with federation=flare: sites fit linear models")
            allowed = "[] with federation=flare: sites execute installed code only; install the plug-in at every site"
            require(not self.plugins, "plugins", self.plugins, allowed)
            require(self.algo.federated, "algo", self.algo.name, "a federated algorithm: rows stay at their sites")
            is_hidden = not (self.federation.masked or self.federation.noise) or self.algo.personal is None
            allowed = f"one without personal models: the metrics of {self.algo.name} would disclose those of each site"
            require(is_hidden, "algo", self.algo.name, allowed)
            require(not self.record_clients, "record_clients", True, "false: clients' models stay at their sites")

    def check_memory(self) -> None:
        """Raise UserError if the data or metrics would not fit into memory, before anything is read or generated."""
        hparams = self.hparams
        require_memory("task: the data", self.task.bytes_needed(self.hparams.dtype))
        evaluations = hparams.last_round // hparams.eval_every
        what = f"hparams.rounds={hparams.rounds}: the metrics of an evaluation every {hparams.eval_every}"
        require_memory(what, evaluations * BYTES_PER_EVALUATION)

    def check_batches(self, sizes: Array, needs_full_batch: bool) -> None:
        """Raise UserError if batches are too small, or if the row indices of a round do not fit into memory.

        `sizes` are the rows of the clients. `needs_full_batch` is True if the loss of a client is not a sum over rows,
        so that a batch must contain all of them.
        """
        hparams, largest = self.hparams, int(sizes.max())
        allowed = f"at least {largest}, the rows of the largest client: this task needs all rows in one batch"
        if needs_full_batch and self.algo.federated:
            require(hparams.batch_size >= largest, "hparams.batch_size", hparams.batch_size, allowed)
        rows = int(np.sort(sizes)[-hparams.sampled(len(sizes)) :].sum()) * hparams.local_epochs
        require_memory(f"hparams.local_epochs={hparams.local_epochs}: the batches of a round", rows * 8)

    def check_clients(self, available: int) -> None:
        """Raise UserError if a round samples more clients than available or fewer than the algorithm needs."""
        sampled = self.hparams.sampled(available)
        if self.algo.federated:
            allowed = f"at most {available}, the task's clients"
            require(sampled <= available, "hparams.clients_per_round", sampled, allowed)
            self.algo.check_participation(sampled, available)
            self.network.check_clients(available)
            allowed = f"at most {sampled}, the clients of a round"
            require(self.transform.shares <= sampled, "transform.noise_shares", self.transform.shares, allowed)

    @property
    def method(self) -> Algorithm:
        """The algorithm with the transform of its messages."""
        return self.algo.with_transform(self.transform)

    @property
    def yaml(self) -> str:
        return as_yaml(self.resolved)

    @cached_property
    def identity(self) -> Identity:
        return identity_of(self)

    @property
    def digests(self) -> dict[str, str]:
        """Identity of the run: digests by name."""
        return asdict(self.identity)

    def check_code(self) -> None:
        """Raise UserError if this process has other code than the process that computed the identity."""
        check_code(self)

    def check_metrics(self, metrics: Collection[str]) -> None:
        """Raise UserError if the run's experiment or search refers to a metric that the run does not compute."""
        if self.experiment is not None:
            self.experiment.check(metrics)
        self.search.check_metrics(metrics)

    @property
    def pause_at(self) -> int | None:
        """Round, before the last, after which the run pauses with a checkpoint; None: run to the end."""
        until = self.search.until
        return None if until is None or until >= self.hparams.last_round else until

    @property
    def is_remote(self) -> bool:
        """True if the clients are at remote sites."""
        return self.federation.is_remote

    @property
    def has_noise(self) -> bool:
        """True if evaluations have noise."""
        return self.federation.noise is not None

    @property
    def run_id(self) -> str:
        return self.identity.run

    @property
    def folder(self) -> Path:
        return self.output_dir / self.task.name / self.algo.name / self.run_id

    def describe(self) -> str:
        """Return a summary in one line."""
        values = asdict(self.regularizer).items()
        psi = [f"{key} {value}" for key, value in values if isinstance(value, int | float)]
        parts = [f"{self.task.name} with {self.algo.name}: {self.regularizer.name} {', '.join(psi)}".rstrip()]
        if self.mirror.name != "euclidean":
            parts.append(f"mirror {self.mirror.name}")
        if self.method.transform.name != "none":
            numbers = [f"{key} {value:g}" for key, value in asdict(self.transform).items() if key != "name"]
            parts.append(f"transform {self.transform.name} {', '.join(numbers)}")
        plain = Network().parts
        parts += [f"{key} {part.name}" for key, part in self.network.parts.items() if part != plain[key]]
        parts += [f"{key} {getattr(self.algo, key):g}" for key in self.algo.varying_options()]
        rates = [key for key in ("client_lr", "server_lr") if key in self.algo.uses]
        parts += [f"{key} {_format_rate(getattr(self.hparams, key))}" for key in rates]
        return ", ".join([*parts, f"seed {self.seed}"])


def _empty_run(kind: type[Run], plugins: dict[str, Path]) -> Run:
    """Return a run without its state, after loading plug-ins: those of installed packages and of the run."""
    load_entry_points()
    for source, path in plugins.items():
        load_plugin(source, path)
    return object.__new__(kind)


def replace_numbers(config: dict[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plain configuration with other numbers; unchanged groups are shared, not copied."""
    config = config.copy()
    for key, number in numbers.items():
        group, _, name = key.rpartition(".")
        if group:
            config[group] = {**config[group], name: number}
        else:
            config[name] = number
    return config


def _format_rate(rate: float | str) -> str:
    return rate if isinstance(rate, str) else f"{rate:g}"


def _refuse_huge_integers(group: str, part: Any) -> None:
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, int):
            require(abs(value) < LARGEST, f"{group}.{field.name}", value, "a whole number below 2^63")


def check_profile(config: DictConfig) -> None:
    """Raise UserError if the profile is invalid; must precede other checks, since numbers of rounds depend on it."""
    typed_group(config, "profile")


def plain(config: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as plain dictionaries and lists."""
    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=resolve))


def _as_object(config: DictConfig, key: str) -> Any:
    """Return a group as an object of its dataclass; raise UserError for lists of texts or numbers with other elements.

    OmegaConf accepts lists and mappings as elements of such lists.
    """
    group = config[key]
    for name in map(str, group if isinstance(group, DictConfig) else ()):
        value = None if OmegaConf.is_missing(group, name) else group[name]
        if isinstance(value, ListConfig) and (allowed := ELEMENTS.get(value._metadata.element_type)):
            for position, element in enumerate(value):
                is_nested = isinstance(element, DictConfig | ListConfig)
                require(not is_nested, f"{key}.{name}[{position}]", element, allowed)
    return OmegaConf.to_object(group)


def typed_group(config: DictConfig, key: str) -> Any:
    """Return a group as an object of its dataclass, which checks the values."""
    part = _as_object(config, key)
    _refuse_unknown_keys(f"{key}.", config[key], part)
    return part


def _refuse_unknown_keys(prefix: str, config: DictConfig, schema: Any) -> None:
    known = [field.name for field in fields(schema) if not field.metadata.get("omegaconf_ignore")]
    for key in set(config) - set(known):
        raise no_such_key(f"{prefix}{key}", known)
