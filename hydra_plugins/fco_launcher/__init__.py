"""Hydra's door to fused sweeps: a launcher that hands all jobs to the application at once, and the grid sweeper.

Hydra finds plugins only below `hydra_plugins`, and imports them at every start: nothing heavy is imported here.
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
    """hydra.launcher"""

    _target_: str = "hydra_plugins.fco_launcher.FusedLauncher"
    n_jobs: int | None = None  # processes; null: as many as cores
    memory_mb: int = 512  # bound on the state of one stack
    backend: str = "local"  # or dask
    address: str | None = None  # of the Dask scheduler, tcp://host:port


@dataclass
class GridSweeperConf:
    """hydra.sweeper: the cartesian product, as Hydra's own; an algorithm may have a grid of its own."""

    _target_: str = "hydra_plugins.fco_launcher.GridSweeper"
    params: dict[str, str] = field(default_factory=dict)
    grid_of: dict[str, Any] = field(default_factory=dict)  # algo -> its own in the place of `params`; null: no run


MOST_RUNS = 50_000  # of a sweep

NUMBERS = ("seed", "hparams.client_lr", "hparams.server_lr")  # what mostly differs between the jobs of a sweep

store = ConfigStore.instance()
store.store(group="hydra/launcher", name="fused", node=FusedLauncherConf, provider="fco")
store.store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="fco")


class GridSweeper(Sweeper):
    """Hydra's basic sweeper without its trial composition of every job: the launcher composes them all first."""

    def __init__(self, params: Mapping[str, str], grid_of: Mapping[str, Any], **unknown: Any) -> None:
        self.params, self.grid_of, self.unknown = params, grid_of, unknown

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        _refuse("hydra.sweeper", self.unknown, GridSweeperConf)
        for algo, grid in self.grid_of.items():
            if not isinstance(grid, Mapping | NoneType):
                raise HydraException(f"hydra.sweeper.grid_of.{algo}: got {grid}, must be key: values, or null")
        if "" in self.params.values():
            none = "which takes an experiment's learning rates near the best, and here there are none"
            raise HydraException(f"profile: got {config.profile.name}, {none}; must be another, such as paper")
        self.folder, self.whole = Path(str(config.hydra.sweep.dir)), config
        self.seeds: int = config.get("seeds") or 1
        self.parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self.start = Plugins.instance().instantiate_launcher(hydra_context, task_function, config).launch

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        with _writing(self.folder):
            OmegaConf.save(self.whole, self.folder / "multirun.yaml")
        jobs = self._product(self.params, arguments)
        algos = [next((text for text in job if text.startswith("algo=")), "") for job in jobs]
        own = {algo: self.grid_of[algo[5:]] for algo in dict.fromkeys(algos) if algo[5:] in self.grid_of}
        jobs = [job for job, algo in zip(jobs, algos, strict=True) if algo not in own]
        for algo, grid in own.items():
            if grid is not None:
                jobs += self._product({**self.params, **grid}, [*arguments, algo])
        returns = self.start(jobs, initial_job_idx=0)
        for returned in returns:
            _ = returned.return_value  # raises what a failed job has raised
        return [returns]

    def _product(self, grid: Mapping[str, Any], arguments: list[str]) -> list[list[str]]:
        """Every combination; what the command line says comes last and counts."""
        # Imported late: Hydra's search for plugins executes the module anew and would leave us an outdated class.
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        seeds = [f"seed={','.join(map(str, range(self.seeds)))}"] if self.seeds > 1 else []
        texts = [*seeds, *(f"{key}={values}" for key, values in grid.items()), *arguments]
        overrides = self.parser.parse_overrides(texts)
        runs = math.prod({override.get_key_element(): _values_of(override) for override in overrides}.values())
        if runs > MOST_RUNS:
            raise HydraException(f"a sweep of {runs:.4g} runs; it may have {MOST_RUNS}")
        (jobs,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        return jobs


def _values_of(override: Override) -> int:
    """How many values an override sweeps over, none of which has been made yet."""
    if not override.is_sweep_override():
        return 1
    given, key, text = override.value(), override.key_or_group, (override.input_line or "").partition("=")[2]
    if isinstance(given, RangeSweep):
        start, stop, step = (float(number or 0) for number in (given.start, given.stop, given.step))
        if not step or not all(map(math.isfinite, (start, stop, step))):
            raise HydraException(f"{key}: got {text}, which has no end")
        count = max(0, math.ceil((stop - start) / step))
    elif override.is_discrete_sweep():
        count = len(list(override.sweep_string_iterator()))
    else:
        raise HydraException(f"{key}: got {text}, which has no end; a sweep needs values: {key}=1,2,3")
    if not count:
        raise HydraException(f"{key}: got {text}, which has no values")
    return count


def _refuse(group: str, unknown: Mapping[str, Any], schema: type) -> None:
    for key in unknown:
        known = ", ".join(field.name for field in fields(schema) if field.name != "_target_")
        raise HydraException(f"{group}.{key}: no such key; allowed: {known}")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Have the folder and write to it; where that cannot be, the user has named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as problem:
        raise HydraException(f"output_dir: {folder} cannot be written: {problem.strerror}") from problem


@dataclass(frozen=True)
class JobConfig:
    """A job's configuration: one that it shares with other jobs, and the numbers that are its own."""

    shared: DictConfig
    numbers: Mapping[str, int | float] = field(default_factory=dict)

    def config(self) -> DictConfig:
        """The job's alone. A sweep makes few of these: to copy one takes longer than to check and run a small job."""
        own = copy.deepcopy(self.shared)
        for key, number in self.numbers.items():
            OmegaConf.update(own, key, number)
        return own


class Composer:
    """Composes the jobs of a sweep; jobs that choose the same groups share one composition.

    Composing takes Hydra a tenth of a second, and most jobs of a grid differ in numbers only.
    """

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self.loader, self.master = loader, master
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, Override] = {}
        self.composed: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}
        self.shared: dict[tuple[str, ...], tuple[DictConfig, DictConfig, bool]] = {}

    def full(self, overrides: list[str]) -> DictConfig:
        """A job's whole configuration, Hydra's part included."""
        return self.loader.load_sweep_config(self.master, overrides)

    def job(self, overrides: list[str]) -> tuple[JobConfig, DictConfig]:
        """A job's own configuration, and the whole one that it shares with others of the same groups."""
        numbers: dict[str, int | float] = {}
        others = []
        for text in overrides:
            if (number := self._number(text)) is None:
                others.append(text)
            else:
                numbers[self._parse(text).key_or_group] = number
        if (key := tuple(others)) not in self.shared:
            shared, whole = self._composed(others)
            self.shared[key] = shared, whole, _refers_to_numbers(shared)
        shared, whole, referred = self.shared[key]
        if referred:  # other keys follow from the numbers
            return JobConfig(JobConfig(shared, numbers).config()), whole
        return JobConfig(shared, numbers), whole

    def _composed(self, overrides: list[str]) -> tuple[DictConfig, DictConfig]:
        groups = tuple(text for text in overrides if not self._is_value(text))
        if groups not in self.composed:
            whole = self.full(list(groups))
            task = copy.deepcopy(whole)
            with open_dict(task):
                del task["hydra"]
            self.composed[groups] = task, whole
        task, whole = self.composed[groups]
        task = copy.deepcopy(task)
        try:
            for override in (self._parse(text) for text in overrides if self._is_value(text)):
                OmegaConf.update(task, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            self.full(overrides)  # Hydra words its own complaint
            raise
        return task, whole

    def _parse(self, text: str) -> Override:
        if text not in self.parsed:
            (self.parsed[text],) = self.parser.parse_overrides([text])
        return self.parsed[text]

    def _number(self, text: str) -> int | float | None:
        """The number that the override gives to a key of `NUMBERS`, of the type that the schema keeps."""
        override = self._parse(text)
        key, value = override.key_or_group, cast("int | float", override.value())
        kinds = (int,) if key == "seed" else (int, float)
        if key not in NUMBERS or override.type != OverrideType.CHANGE or type(value) not in kinds:
            return None
        return float(value) if key == "hparams.server_lr" else value

    def _is_value(self, text: str) -> bool:
        """Whether the override sets a number or a word, and so can be applied to a finished composition."""
        override = self._parse(text)
        key, kinds = override.key_or_group, int | float
        if "." in key:  # a key within a group: its word chooses no other group
            kinds |= str
        return override.type == OverrideType.CHANGE and isinstance(override.value(), kinds) and key[:6] != "hydra."


def _refers_to_numbers(config: DictConfig) -> bool:
    """Whether an interpolation, ${...}, names one of `NUMBERS`, be it by its last part only."""
    names = "|".join(key.rpartition(".")[2] for key in NUMBERS)
    text = json.dumps(OmegaConf.to_container(config), default=str)
    return re.search(rf"\$\{{[^}}]*({names})", text) is not None


class FusedLauncher(Launcher):
    """Gives all jobs to the task function's `sweep` if it has one; otherwise runs them one after another."""

    def __init__(self, n_jobs: int | None, memory_mb: int, backend: str, address: str | None, **unknown: Any) -> None:
        self.unknown = unknown
        self.options = {"n_jobs": n_jobs, "memory_mb": memory_mb, "backend": backend, "address": address}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        _refuse("hydra.launcher", self.unknown, FusedLauncherConf)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        with _writing(Path(str(self.config.hydra.sweep.dir))):
            pass
        composer = Composer(self.hydra_context.config_loader, self.config)
        jobs = [list(overrides) for overrides in job_overrides]
        sweep = getattr(self.task_function, "sweep", None)
        if sweep is None:
            return [self._run(composer.full(job), number) for number, job in enumerate(jobs, initial_job_idx)]
        return self._fuse(sweep, list(self._composed(composer, jobs)), jobs)

    def _composed(self, composer: Composer, jobs: list[list[str]]) -> Iterator[tuple[JobConfig, DictConfig]]:
        """All jobs; the application hears of the first that shares a configuration as soon as there is one."""
        expect, told = getattr(self.task_function, "expect", None), set()
        for overrides in jobs:
            job, whole = composer.job(overrides)
            if expect is not None and id(job.shared) not in told:
                told.add(id(job.shared))
                expect(job, **self.options)
            yield job, whole

    def _run(self, config: DictConfig, number: int) -> JobReturn:
        with open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(number), number
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    def _fuse(self, sweep: Any, composed: list[tuple[JobConfig, DictConfig]], jobs: list[list[str]]) -> list[JobReturn]:
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        values = sweep([job for job, _ in composed], jobs, **self.options)
        returns = []
        for (_, whole), overrides, value in zip(composed, jobs, values, strict=True):
            returned = JobReturn(overrides=overrides, hydra_cfg=whole, task_name=whole.hydra.job.name)
            returned.working_dir = str(Path.cwd())
            returned.status = JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED
            returned.return_value = value
            returns.append(returned)
        return returns
