"""Searches: one per combination of group options, in batches that are launched together.

A batch of a search is one stack. Its finished runs are reused, so that a search that was interrupted continues.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from fco_cli.config import Run, kind_of
from fco_cli.config.search import REDUCTION, RUNG_FRACTIONS, objectives_of
from fco_cli.errors import SweepFailed, UserError, require
from fco_cli.help import GROUPS
from fco_cli.search.record import DIVERGED, FAILED, FINISHED, PRUNED, SearchRecord, Setting, record_folder
from fco_cli.search.sampler import Sampler
from fco_cli.search.space import Space, dimension_of, is_searched

log = logging.getLogger(__name__)

Overrides = list[str]
Parse = Callable[[list[str]], list[Override]]
Compose = Callable[[Overrides], DictConfig]
Launch = Callable[[list[Overrides]], Sequence[Any]]
TO_THE_END = 2**62  # `search.until` of runs that do not pause
ROUND_KEYS = ("hparams.rounds", "hparams.eval_every")
INCOMPARABLE = ("task.", "regularizer.", "model.", "mirror.")  # keys that change the objective itself


@dataclass(frozen=True)
class Plan:
    """Overrides of a sweep: keys with values, per algorithm (hydra.sweeper), and those of the command line."""

    params: Mapping[str, Any]
    grid_of: Mapping[str, Any]
    arguments: Overrides
    seeds: int

    def spaces(self, parse: Parse) -> Iterator[tuple[Space, list[str]]]:
        """Yield the space and the seeds of every search: one per combination of the swept group options."""
        keyed = self._by_key(parse, {})
        groups = [one for key, one in keyed.items() if one.is_sweep_override() and key in GROUPS]
        for one in groups:
            allowed = f"a list of options such as {one.key_or_group}=first,second"
            require(one.is_discrete_sweep(), one.key_or_group, (one.input_line or "").partition("=")[2], allowed)
        options = [[f"{one.key_or_group}={value}" for value in one.sweep_string_iterator()] for one in groups]
        for chosen in itertools.product(*options):
            algo = next((text[5:] for text in chosen if text.startswith("algo=")), None)
            if algo is None and "algo" in keyed:
                algo = str(keyed["algo"].value())
            own = self.grid_of.get(algo or "", {})
            if own is not None:
                yield self._space(self._by_key(parse, own), chosen)

    def _space(self, keyed: Mapping[str, Override], chosen: Sequence[str]) -> tuple[Space, list[str]]:
        fixed = [one.input_line or "" for key, one in keyed.items() if not one.is_sweep_override() and key != "seeds"]
        seeds = [str(seed) for seed in range(self.seeds)] if self.seeds > 1 else []
        if "seed" in keyed and keyed["seed"].is_sweep_override():
            seed = keyed["seed"]
            text = (seed.input_line or "").partition("=")[2]
            require(seed.is_discrete_sweep(), "seed", text, "a list of seeds such as seed=0,1,2")
            seeds = list(dict.fromkeys(seed.sweep_string_iterator()))
        elif "seed" in keyed:
            seeds = []
        dimensions = tuple(dimension_of(one) for one in keyed.values() if is_searched(one))
        return Space(dimensions, (*fixed, *chosen)), seeds

    def _by_key(self, parse: Parse, own: Mapping[str, Any]) -> dict[str, Override]:
        texts = [f"{key}={values}" for key, values in {**self.params, **own}.items()]
        return {override.get_key_element(): override for override in parse([*texts, *self.arguments])}


class OneSearch:
    """One search: its sampler, its record and the settings of the current batch."""

    def __init__(self, space: Space, seeds: list[str], compose: Compose) -> None:
        first = [one.text(one.at(0.0)) for one in space.dimensions]
        config = compose([*space.overrides(tuple(first)), "search.until=null"])
        require(kind_of(config) == "run", "hydra/sweeper", "search", f"grid with experiment={kind_of(config)}")
        run = Run.of(config)
        require(run.search.until is None, "search.until", run.search.until, "null; the sweeper sets it")
        self.settings = run.search
        for one in space.dimensions:
            if one.key in ROUND_KEYS and self.settings.pruning != "none":
                raise UserError(f"{one.key}: must be one value with search.pruning={self.settings.pruning}")
        self.seeds = seeds or [""]
        objectives = objectives_of(self.settings, run.experiment)
        changed = next((one.key for one in space.dimensions if one.key.startswith(INCOMPARABLE)), None)
        if changed and "objective" in {one.metric for one in objectives}:
            raise UserError(f"search.metric: must not be objective, which {changed} changes; use validation_loss or f1")
        self.rungs = self._rungs(run)
        shown = Space(
            space.dimensions, tuple(text for text in space.shared if not text.startswith(("search.", "hydra")))
        )
        folder = record_folder(Path(run.output_dir), shown, self.settings, objectives)
        self.record = SearchRecord(shown, objectives, self.settings, folder)
        self.space, self.sampler = space, Sampler(space, self.settings, objectives)
        self.batch: list[Setting] = []

    def _rungs(self, run: Run) -> list[int]:
        """Return the rounds after which halving compares the settings of a batch."""
        if self.settings.pruning == "none" or run.algo.one_shot:
            return []
        rounds, every = run.hparams.last_round, run.hparams.eval_every
        rungs = [math.ceil(rounds / fraction / every) * every for fraction in RUNG_FRACTIONS]
        return sorted({rung for rung in rungs if rung < rounds})

    def ask(self) -> list[Setting]:
        """Return the settings of the next batch; empty at the end of the search."""
        trials = self.record.trials
        most = max(1, self.settings.budget // len(self.seeds))
        points = self.sampler.ask(min(self.settings.batch, most - len(trials)))
        number = trials[-1].batch + 1 if trials else 1
        self.batch = []
        for point in points:
            jobs = [[*self.record.space.overrides(point), *([f"seed={seed}"] if seed else [])] for seed in self.seeds]
            self.batch.append(Setting(len(trials) + len(self.batch) + 1, number, point, jobs))
        return self.batch

    def jobs(self, setting: Setting, until: int | None) -> list[Overrides]:
        """Return the overrides of a setting's runs up to a round, or to their end."""
        own = [text for text in self.space.shared if text not in self.record.space.shared]
        return [[*own, *job, f"search.until={until or TO_THE_END}"] for job in setting.overrides]

    def add(self, setting: Setting, returned: Sequence[Any], until: int | None) -> None:
        """Set the mean values of a setting from those of its runs."""
        if any(isinstance(value, Exception) for value in returned):
            setting.state, setting.values = FAILED, []
            return
        rows = [value if isinstance(value, list) else [value] for value in returned]
        means = [math.fsum(column) / len(column) for column in zip(*rows, strict=True)]
        if not all(map(math.isfinite, means)):
            setting.state, setting.values = DIVERGED, []
        else:
            setting.values = means

    def prune(self, settings: list[Setting], rung: int) -> None:
        """Stop all but the best third of the settings."""
        running = sorted((one for one in settings if one.state == FINISHED), key=self._cost)
        for one in running[math.ceil(len(settings) / REDUCTION) :]:
            one.state, one.pruned_after = PRUNED, rung

    def _cost(self, setting: Setting) -> tuple[float, int]:
        sign = 1.0 if self.record.objectives[0].direction == "minimize" else -1.0
        return sign * setting.values[0], setting.number

    def finish_batch(self) -> None:
        """Report the values to the sampler and write the record."""
        for one in self.batch:
            rung = None if one.pruned_after is None else (one.pruned_after, one.values[0])
            self.sampler.tell(one.point, one.values if one.state == FINISHED else None, rung)
        self.record.trials += self.batch
        self.record.write()


def run_searches(plan: Plan, parse: Parse, compose: Compose, launch: Launch) -> list[SearchRecord]:
    """Run all searches, batch by batch; raise SweepFailed if settings failed."""
    searches = [OneSearch(space, seeds, compose) for space, seeds in plan.spaces(parse)]
    if not searches:
        raise UserError("hydra/sweeper: search has no runs; hydra.sweeper.grid_of excludes all algorithms")
    problems: list[Exception] = []
    while batch := [(search, one) for search in searches for one in search.ask()]:
        for step in range(len(RUNG_FRACTIONS) + 1):
            batch = _advance(batch, step, launch, problems)
        for search in searches:
            if search.batch:
                search.finish_batch()
    if problems:
        raise SweepFailed(str(problems[0]))
    return [search.record for search in searches]


def check_finished(records: Sequence[SearchRecord]) -> None:
    """Raise SweepFailed if no setting of any search has finished."""
    if not any(record.best for record in records):
        count = sum(record.counts[DIVERGED] for record in records)
        raise SweepFailed(f"all {count} settings diverged, so there is no best one; search smaller learning rates")


def _advance(
    batch: list[tuple[OneSearch, Setting]], step: int, launch: Launch, problems: list[Exception]
) -> list[tuple[OneSearch, Setting]]:
    """Run the settings to their next rung, or to the end, and return those that continue."""
    if not batch:
        return []
    rungs = [search.rungs[step] if step < len(search.rungs) else None for search, _ in batch]
    jobs = [search.jobs(one, rung) for (search, one), rung in zip(batch, rungs, strict=True)]
    values = iter(launch([job for own in jobs for job in own]))
    for (search, one), own, rung in zip(batch, jobs, rungs, strict=True):
        returned = list(itertools.islice(values, len(own)))
        problems += [value for value in returned if isinstance(value, Exception)]
        search.add(one, returned, rung)
    for search in dict.fromkeys(search for search, _ in batch):
        if step < len(search.rungs):
            search.prune([one for owner, one in batch if owner is search], search.rungs[step])
    return [
        (search, one)
        for (search, one), rung in zip(batch, rungs, strict=True)
        if rung is not None and one.state == FINISHED
    ]
