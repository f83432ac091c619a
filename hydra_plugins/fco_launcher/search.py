"""Hydra plugin for searches, `hydra/sweeper=search`: a sweeper that asks Optuna for batches (docs/search.md).

Hydra finds plugins only below `hydra_plugins` and imports them at every start, so this module imports little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.fco_launcher import Composer, GridSweeper, refuse_unknown, writable


@dataclass
class SearchSweeperConf:
    """Schema of hydra.sweeper; the settings of a search are the `search` keys of a run."""

    _target_: str = "hydra_plugins.fco_launcher.search.SearchSweeper"
    params: dict[str, str] = field(default_factory=dict)
    grid_of: dict[str, Any] = field(default_factory=dict)  # algo -> values that replace `params`; null: no runs


ConfigStore.instance().store(group="hydra/sweeper", name="search", node=SearchSweeperConf, provider="fco")


class SearchSweeper(GridSweeper):
    """Sweeper that searches the space of the swept keys, with a search per combination of group options."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        refuse_unknown("hydra.sweeper", self.unknown, SearchSweeperConf)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.master = config
        self.composer = Composer(hydra_context.config_loader, config)
        self.print_searches = getattr(task_function, "print_searches", None)
        self.is_fused = str(config.hydra.launcher.get("_target_")).endswith(".FusedLauncher")

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        from fco_cli.config import Run
        from fco_cli.search.run import Plan, check_finished, run_searches

        if self.master.dry_run:
            raise HydraException("dry_run: must be false with hydra/sweeper=search, whose runs depend on their results")
        if (pruning := self.master.search.pruning) != "none" and not self.is_fused:
            raise HydraException(f"search.pruning: got {pruning}, must be none unless hydra/launcher=fused")
        with writable(self.folder):
            OmegaConf.save(self.master, self.folder / "multirun.yaml")
        returns: list[Sequence[JobReturn]] = []

        def launch(jobs: list[list[str]]) -> list[Any]:
            returns.append(self.start(jobs, initial_job_idx=sum(map(len, returns))))
            return [returned._return_value for returned in returns[-1]]

        def compose(overrides: list[str]) -> DictConfig:
            return self.composer.job(overrides)[0].config()

        plan = Plan(self.params, self.grid_of, arguments, self.seeds)
        records = run_searches(plan, self.parser.parse_overrides, compose, launch)
        if self.print_searches is not None:
            self.print_searches(records, lambda overrides: Run.of(compose(overrides)).folder)
        check_finished(records)
        return returns
