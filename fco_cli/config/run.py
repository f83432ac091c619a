"""A composed configuration, typed and checked."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fco_cli.algorithms import Algorithm
from fco_cli.config.identity import Identity, identity_of
from fco_cli.config.schemas import RunConfig, Selection
from fco_cli.errors import no_such_key, require
from fco_cli.files import as_yaml
from fco_cli.problem.mirror_maps import Mirror
from fco_cli.problem.regularizers import Regularizer
from fco_cli.simulation.hparams import Hparams
from fco_cli.tasks import Task

PARTS = ("task", "algo", "regularizer", "mirror", "hparams")


@dataclass
class Run:
    """What one run computes, and where it leaves its record."""

    task: Task
    algo: Algorithm
    regularizer: Regularizer
    mirror: Mirror
    hparams: Hparams
    seed: int
    output_dir: Path
    force: bool
    record_clients: bool
    record_path: bool
    threads: int | None
    select: Selection | None  # how the experiment it belongs to, if any, chooses learning rates
    yaml: str  # the resolved configuration

    @classmethod
    def of(cls, config: DictConfig) -> Run:
        """Check everything that can be known before any data are built."""
        parts: dict[str, Any] = {key: OmegaConf.to_object(config[key]) for key in PARTS}
        for key, part in parts.items():  # Hydra lets +key=value add keys that no schema knows
            _refuse_unknown_keys(f"{key}.", config[key], part)
        _refuse_unknown_keys("", config, RunConfig)
        for key in ("algo", "regularizer", "mirror"):
            name, own = parts[key].name, type(parts[key]).name
            require(
                name == own, f"{key}.name", name, f"{own}, which {key}={own} brings; another is chosen by {key}=..."
            )
        run = cls(
            **parts,
            seed=config.seed,
            output_dir=Path(config.output_dir),
            force=config.force,
            record_clients=config.record_clients,
            record_path=config.record_path,
            threads=config.threads,
            select=OmegaConf.to_object(config.experiment.select) if config.experiment else None,  # type: ignore[arg-type]
            yaml=as_yaml(OmegaConf.to_container(config, resolve=True)),
        )
        is_folder_name = re.fullmatch(r"[\w-]+", run.task.name) is not None
        require(is_folder_name, "task.name", run.task.name, "of letters, digits, _ and -: it names a folder")
        require(0 <= run.seed < 2**63, "seed", run.seed, "a whole number >= 0")
        require(config.seeds is None or config.seeds >= 1, "seeds", config.seeds, "null or a whole number >= 1")
        require(run.threads is None or run.threads >= 1, "threads", run.threads, "null or a whole number >= 1")
        run.mirror.primal(run.regularizer)  # refuses a pair without a closed form
        run.algo.check_pair(run.regularizer, run.mirror)
        if run.task.clients_available is not None:
            run.check_clients(run.task.clients_available)
        return run

    def check_clients(self, available: int) -> None:
        """A round cannot sample more clients than there are, nor fewer than the algorithm needs."""
        sampled = self.hparams.clients_per_round
        if self.algo.federated:
            allowed = f"at most {available}, the task's clients"
            require(sampled <= available, "hparams.clients_per_round", sampled, allowed)
            self.algo.check_participation(sampled, available)

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
        """One line for people."""
        psi = [f"{key} {value}" for key, value in asdict(self.regularizer).items() if key != "name"]
        parts = [f"{self.task.name} with {self.algo.name}: {self.regularizer.name} {', '.join(psi)}".rstrip()]
        if self.mirror.name != "euclidean":
            parts.append(f"mirror {self.mirror.name}")
        parts += [f"{key} {getattr(self.algo, key):g}" for key in self.algo.varying_options()]
        parts += [
            f"{key} {getattr(self.hparams, key):g}" for key in ("client_lr", "server_lr") if key in self.algo.uses
        ]
        return ", ".join([*parts, f"seed {self.seed}"])


def _refuse_unknown_keys(prefix: str, config: DictConfig, schema: Any) -> None:
    known = [field.name for field in fields(schema)]
    for key in set(config) - set(known):
        raise no_such_key(f"{prefix}{key}", known)
