"""Hydra plugins for fused sweeps: a launcher that passes all jobs to the application at once, and the grid sweeper.

Hydra finds plugins only below `hydra_plugins` and imports them at every start, so this module imports little.
"""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException


@dataclass
class FusedLauncherConf:
    """Schema of hydra.launcher."""

    _target_: str = "hydra_plugins.fco_launcher.FusedLauncher"
    n_jobs: int | None = None  # number of processes; null: one per core
    memory_mb: int = 512  # bound on the state of one stack
    backend: str = "local"  # or dask
    address: str | None = None  # of the Dask scheduler, tcp://host:port


@dataclass
class GridSweeperConf:
    """Schema of hydra.sweeper."""

    _target_: str = "hydra_plugins.fco_launcher.GridSweeper"
    params: dict[str, str] = field(default_factory=dict)
    grid_of: dict[str, Any] = field(default_factory=dict)  # algo -> values that replace `params`; null: no runs


MOST_RUNS = 50_000  # largest number of runs of a sweep

NUMBERS = ("seed", "hparams.client_lr", "hparams.server_lr")  # keys that usually differ between the jobs of a sweep

store = ConfigStore.instance()
store.store(group="hydra/launcher", name="fused", node=FusedLauncherConf, provider="fco")
store.store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="fco")


class GridSweeper(Sweeper):
    """Sweeper over a Cartesian product, with optional grids per algorithm.

    Unlike Hydra's basic sweeper it does not compose every job for a check, since the launcher composes all of them.
    """

    def __init__(self, params: Mapping[str, str], grid_of: Mapping[str, Any], **unknown: Any) -> None:
        self.params, self.grid_of, self.unknown = params, grid_of, unknown

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        refuse_unknown("hydra.sweeper", self.unknown, GridSweeperConf)
        for algo, grid in self.grid_of.items():
            if not isinstance(grid, Mapping | NoneType):
                raise HydraException(f"hydra.sweeper.grid_of.{algo}: got {grid}, must be key: values, or null")
        if "" in self.params.values():
            reason = "which needs experiment.near_best, and this sweep has none"
            raise HydraException(f"profile: got {config.profile.name}, {reason}; choose another, such as paper")
        self.folder, self.config = Path(str(config.hydra.sweep.dir)), config
        self.seeds: int = config.get("seeds") or 1
        self.is_dry_run = bool(config.get("dry_run"))
        self.parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self.start = Plugins.instance().instantiate_launcher(hydra_context, task_function, config).launch

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        if not self.is_dry_run:
            with writable(self.folder):
                OmegaConf.save(self.config, self.folder / "multirun.yaml")
        jobs = self._product(self.params, arguments)
        algos = [next((text for text in job if text.startswith("algo=")), "") for job in jobs]
        own = {algo: self.grid_of[algo[5:]] for algo in dict.fromkeys(algos) if algo[5:] in self.grid_of}
        jobs = [job for job, algo in zip(jobs, algos, strict=True) if algo not in own]
        for algo, grid in own.items():
            if grid is not None:
                jobs += self._product({**self.params, **grid}, [*arguments, algo])
        returns = self.start(jobs, initial_job_idx=0)
        for returned in returns:
            _ = returned.return_value  # raises the exception of a failed job
        return [returns]

    def _product(self, grid: Mapping[str, Any], arguments: list[str]) -> list[list[str]]:
        """Return the overrides of every combination; those of the command line come last and take precedence."""
        # Imported late: Hydra's search for plugins reloads the module, which would make an earlier import outdated.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        seeds = [f"seed={','.join(map(str, range(self.seeds)))}"] if self.seeds > 1 else []
        texts = [*seeds, *(f"{key}={values}" for key, values in grid.items()), *arguments]
        overrides = self.parser.parse_overrides(texts)
        runs = math.prod({override.get_key_element(): _count_values(override) for override in overrides}.values())
        if runs > MOST_RUNS:
            raise HydraException(f"the sweep has {runs:.4g} runs, must be at most {MOST_RUNS}")
        (jobs,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        return jobs


def _count_values(override: Override) -> int:
    """Return the number of values that an override sweeps over, without generating those of a range."""
    if not override.is_sweep_override():
        return 1
    value, key, text = override.value(), override.key_or_group, (override.input_line or "").partition("=")[2]
    if isinstance(value, RangeSweep):
        start, stop, step = (float(number or 0) for number in (value.start, value.stop, value.step))
        if not step or not all(map(math.isfinite, (start, stop, step))):
            raise HydraException(f"{key}: got {text}, which is infinite")
        count = max(0, math.ceil((stop - start) / step))
    elif override.is_discrete_sweep():
        count = len(list(override.sweep_string_iterator()))
    else:
        raise HydraException(f"{key}: got {text}, must be a list of values such as {key}=1,2,3")
    if not count:
        raise HydraException(f"{key}: got {text}, which has no values")
    return count


def refuse_unknown(group: str, unknown: Mapping[str, Any], schema: type) -> None:
    for key in unknown:
        known = ", ".join(field.name for field in fields(schema) if field.name != "_target_")
        raise HydraException(f"{group}.{key}: no such key; allowed: {known}")


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Create the folder, and report an OSError of the body as an error of output_dir."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as problem:
        raise HydraException(f"output_dir: {folder} cannot be written: {problem.strerror}") from problem


@dataclass(frozen=True)
class JobConfig:
    """Configuration of a job: one shared with other jobs, and the job's numbers."""

    shared: DictConfig
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    def config(self) -> DictConfig:
        """Return the complete configuration; the copy takes longer than a small job."""
        config = copy.deepcopy(self.shared)
        for key, number in self.numbers.items():
            OmegaConf.update(config, key, number)
        return config


class Composer:
    """Composer of the jobs of a sweep; jobs with the same options of groups share one composition.

    A composition takes Hydra about 0.1 s, and most jobs of a grid differ only in numbers.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader, self.master = loader, master
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, Override] = {}
        self.composed: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}
        self.shared: dict[tuple[str, ...], tuple[DictConfig, DictConfig, bool]] = {}

    def full(self, overrides: list[str]) -> DictConfig:
        """Return the configuration of a job, including Hydra's part."""
        return self.loader.load_sweep_config(self.master, overrides)

    def job(self, overrides: list[str]) -> tuple[JobConfig, DictConfig]:
        """Return the configuration of a job, and the full one of its groups, which includes Hydra's part."""
        numbers: dict[str, int | float] = {}
        others = []
        for text in overrides:
            if (number := self._number(text)) is None:
                others.append(text)
            else:
                numbers[self._parse(text).key_or_group] = number
        if (key := tuple(others)) not in self.shared:
            shared, full = self._compose(others)
            self.shared[key] = shared, full, _refers_to_numbers(shared)
        shared, full, has_references = self.shared[key]
        if has_references:  # other keys depend on the numbers
            return JobConfig(JobConfig(shared, numbers).config()), full
        return JobConfig(shared, numbers), full

    def _compose(self, overrides: list[str]) -> tuple[DictConfig, DictConfig]:
        groups = tuple(text for text in overrides if not self._is_value(text))
        if groups not in self.composed:
            full = self.full(list(groups))
            task = copy.deepcopy(full)
            with open_dict(task):
                del task["hydra"]
            self.composed[groups] = task, full
        task, full = self.composed[groups]
        task = copy.deepcopy(task)
        try:
            for override in (self._parse(text) for text in overrides if self._is_value(text)):
                OmegaConf.update(task, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            self.full(overrides)  # raises Hydra's own error
            raise
        return task, full

    def _parse(self, text: str) -> Override:
        if text not in self.parsed:
            (self.parsed[text],) = self.parser.parse_overrides([text])
        return self.parsed[text]

    def _number(self, text: str) -> int | float | None:
        """Return the number that the override sets for a key of `NUMBERS`, with the type of the schema, or None."""
        override = self._parse(text)
        key, value = override.key_or_group, cast("int | float", override.value())
        kinds = (int,) if key == "seed" else (int, float)
        if key not in NUMBERS or override.type != OverrideType.CHANGE or type(value) not in kinds:
            return None
        return float(value) if key == "hparams.server_lr" else value

    def _is_value(self, text: str) -> bool:
        """Return True if the override sets a number or a text and can be applied to a finished composition."""
        override = self._parse(text)
        key, kinds = override.key_or_group, int | float
        if "." in key:  # a key within a group; at the top level a text may choose an option
            kinds |= str
        return override.type == OverrideType.CHANGE and isinstance(override.value(), kinds) and key[:6] != "hydra."


def _refers_to_numbers(config: DictConfig) -> bool:
    """Return True if an interpolation, ${...}, contains the last part of one of `NUMBERS`."""
    names = "|".join(key.rpartition(".")[2] for key in NUMBERS)
    text = json.dumps(OmegaConf.to_container(config), default=str)
    return re.search(rf"\$\{{[^}}]*({names})", text) is not None


class FusedLauncher(Launcher):
    """Launcher that passes all jobs to the task function's `sweep`, if it has one, and otherwise runs them in turn.

    Jobs of a stack run together: Hydra's callbacks `on_job_start` are called for all jobs before the first one runs,
    and `on_job_end` after the last one.
    """

    def __init__(self, n_jobs: int | None, memory_mb: int, backend: str, address: str | None, **unknown: Any) -> None:
        self.unknown = unknown
        self.options = {"n_jobs": n_jobs, "memory_mb": memory_mb, "backend": backend, "address": address}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        refuse_unknown("hydra.launcher", self.unknown, FusedLauncherConf)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        if not self.config.get("dry_run"):
            with writable(Path(str(self.config.hydra.sweep.dir))):
                pass
        composer = Composer(self.hydra_context.config_loader, self.config)
        jobs = [list(overrides) for overrides in job_overrides]
        sweep = getattr(self.task_function, "sweep", None)
        if sweep is None:
            return [self._run(composer.full(job), number) for number, job in enumerate(jobs, initial_job_idx)]
        has_callbacks = bool(self.config.hydra.get("callbacks"))
        configs = [
            self._numbered(composer.full(job), n) for n, job in enumerate(jobs, initial_job_idx) if has_callbacks
        ]
        for config in configs:
            self.hydra_context.callbacks.on_job_start(config=config, task_function=self.task_function)
        returns = self._fuse(sweep, list(self._compose(composer, jobs)), jobs)
        for config, returned in zip(configs, returns, strict=False):
            self.hydra_context.callbacks.on_job_end(config=config, job_return=returned)
        return returns

    def _compose(self, composer: Composer, jobs: list[list[str]]) -> Iterator[tuple[JobConfig, DictConfig]]:
        """Yield all jobs; call the application's `expect` with the first job of every shared configuration."""
        expect, announced = getattr(self.task_function, "expect", None), set()
        for overrides in jobs:
            job, full = composer.job(overrides)
            if expect is not None and id(job.shared) not in announced:
                announced.add(id(job.shared))
                expect(job, **self.options)
            yield job, full

    @staticmethod
    def _numbered(config: DictConfig, number: int) -> DictConfig:
        """Return the configuration of a job with its number in the sweep."""
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(number), number
        return config

    def _run(self, config: DictConfig, number: int) -> JobReturn:
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=self._numbered(config, number),
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    def _fuse(self, sweep: Any, composed: list[tuple[JobConfig, DictConfig]], jobs: list[list[str]]) -> list[JobReturn]:
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        values = sweep([job for job, _ in composed], jobs, **self.options)
        returns = []
        for (_, full), overrides, value in zip(composed, jobs, values, strict=True):
            returned = JobReturn(overrides=overrides, hydra_cfg=full, task_name=full.hydra.job.name)
            returned.working_dir = str(Path.cwd())
            returned.status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
            returned.return_value = value
            returns.append(returned)
        return returns
