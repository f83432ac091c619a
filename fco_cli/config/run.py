"""The typed and validated configuration of a run."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf

from fco_cli.algorithms import Algorithm
from fco_cli.algorithms.transforms import Transform
from fco_cli.config.identity import Identity, identity_of
from fco_cli.config.path_settings import PathSettings
from fco_cli.config.schemas import Experiment, RunConfig
from fco_cli.errors import no_such_key, require
from fco_cli.federation.settings import Federation
from fco_cli.files import as_yaml
from fco_cli.memory_limit import require_memory
from fco_cli.problem.layout import Array
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.hparams import AUTO, Hparams
from fco_cli.tasks import Task

LARGEST = 2**63  # integers must be below
BYTES_PER_EVALUATION = 24 * 32  # 24 metrics as Python numbers
PARTS = ("task", "algo", "regularizer", "mirror", "transform", "hparams", "federation")


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
    seed: int
    output_dir: Path
    force: bool
    record_clients: bool
    record_path: bool
    threads: int | None
    experiment: Experiment | None  # the experiment that the run belongs to
    path: PathSettings | None  # settings of experiment=path
    resolved: dict[str, Any]  # the resolved configuration

    @classmethod
    def of(cls, config: DictConfig) -> Run:
        """Return the run of a configuration; raise UserError for any error that does not depend on the data."""
        check_profile(config)
        experiment = None if config.experiment is None else _typed(config, "experiment")
        if experiment is not None:
            _refuse_unknown_keys("experiment.select.", config.experiment.select, experiment.select)
        if config.federation.name != "none" and OmegaConf.is_missing(config.task, "path"):
            config = config.copy()
            config.task.path = ""  # the rows are at the sites
        parts: dict[str, Any] = {key: OmegaConf.to_object(config[key]) for key in PARTS}
        for key, part in parts.items():  # +key=value can add keys that are not in the schema
            _refuse_unknown_keys(f"{key}.", config[key], part)
        _refuse_unknown_keys("", config, RunConfig)
        for key in PARTS:
            _refuse_huge_integers(key, parts[key])
        for key in ("algo", "regularizer", "mirror", "transform", "federation"):
            name, own = parts[key].name, type(parts[key]).name
            require(name == own, f"{key}.name", name, f"{own}, as set by {key}={own}; use {key}=... to choose another")
        parts["task"] = parts["federation"].bind_task(parts["task"], parts["hparams"])
        run = cls(
            **parts,
            seed=config.seed,
            output_dir=Path(config.output_dir),
            force=config.force,
            record_clients=config.record_clients,
            record_path=config.record_path,
            threads=config.threads,
            experiment=experiment,
            path=_path_settings(config),
            resolved=plain(config, resolve=True),
        )
        is_folder_name = re.fullmatch(r"[\w-]+", run.task.name) is not None
        require(is_folder_name, "task.name", run.task.name, "a folder name of letters, digits, _ and -")
        run.check_seed()
        require(
            str(run.output_dir) != "." and config.output_dir.isprintable(), "output_dir", config.output_dir, "a folder"
        )
        require(config.seeds is None or config.seeds >= 1, "seeds", config.seeds, "null or a whole number >= 1")
        require(run.threads is None or run.threads >= 1, "threads", run.threads, "null or a whole number >= 1")
        run.check_sites()
        run.mirror.primal(run.regularizer)  # raises UserError for a pair without a closed form
        run.algo.check_pair(run.regularizer, run.mirror)
        if run.hparams.until_converged:
            run.check_auto_rounds()
        run.method.check_transform(run.hparams.weighting)
        if run.task.clients_available is not None:
            run.check_clients(run.task.clients_available)
        run.check_memory()
        return run

    def with_numbers(self, numbers: Mapping[str, int | float]) -> Run:
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
        is_exact, allowed = (
            self.federation.noise is None,
            f"{number}convergence cannot be tested with noisy evaluations",
        )
        require(is_exact, "hparams.rounds", AUTO, allowed)
        require(self.algo.personal is None, "hparams.rounds", AUTO, f"{number}{self.algo.name} has personal models")
        for key in ("record_clients", "record_path"):
            require(not getattr(self, key), "hparams.rounds", AUTO, f"{number}{key}=true needs a known last round")

    def check_sites(self) -> None:
        """Raise UserError for settings that would need rows or models of single clients outside of their sites."""
        if self.federation.is_remote:
            require(self.algo.federated, "algo", self.algo.name, "a federated algorithm: rows stay at their sites")
            is_hidden = not (self.federation.masked or self.federation.noise) or self.algo.personal is None
            allowed = f"one without personal models: the metrics of {self.algo.name} would disclose those of each site"
            require(is_hidden, "algo", self.algo.name, allowed)
            require(not self.record_clients, "record_clients", True, "false: clients' models stay at their sites")
            is_exact = self.path is None or self.federation.noise is None
            allowed = "an experiment without a path, which needs exact sums: federation.evaluation_noise is set"
            require(is_exact, "experiment", "path", allowed)

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
        parts += [f"{key} {getattr(self.algo, key):g}" for key in self.algo.varying_options()]
        parts += [
            f"{key} {_format_rate(getattr(self.hparams, key))}"
            for key in ("client_lr", "server_lr")
            if key in self.algo.uses
        ]
        return ", ".join([*parts, f"seed {self.seed}"])


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
    _typed(config, "profile")


def plain(config: DictConfig, resolve: bool = False) -> dict[str, Any]:
    """Return a configuration as plain dictionaries and lists."""
    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=resolve))


def _path_settings(config: DictConfig) -> PathSettings | None:
    is_valid = config.path is None or OmegaConf.get_type(config, "path") is PathSettings
    require(is_valid, "path", config.path, "null: experiment=path brings it")
    return None if config.path is None else _typed(config, "path")


def _typed(config: DictConfig, key: str) -> Any:
    """Return a group as an object of its dataclass, which checks the values."""
    part = OmegaConf.to_object(config[key])
    _refuse_unknown_keys(f"{key}.", config[key], part)
    return part


def _refuse_unknown_keys(prefix: str, config: DictConfig, schema: Any) -> None:
    known = [field.name for field in fields(schema)]
    for key in set(config) - set(known):
        raise no_such_key(f"{prefix}{key}", known)
