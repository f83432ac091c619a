"""The record of a search: a folder with

trials.csv     a row per setting: its state, values, rounds and overrides
best.yaml      the overrides and the command of the best run, or of every run on the Pareto front
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fco_cli.config.search import Objective, Search
from fco_cli.errors import UserError
from fco_cli.files import as_csv, as_yaml, write_atomically
from fco_cli.search.space import Point, Space

FOLDER = "search"  # below output_dir
FINISHED, PRUNED, DIVERGED, FAILED = "finished", "pruned", "diverged", "failed"


@dataclass
class Setting:
    """Point of a search, its runs (one per seed) and their mean values."""

    number: int
    batch: int
    point: Point
    overrides: list[list[str]]  # of each run
    state: str = FINISHED
    values: list[float] = field(default_factory=list)  # empty if the setting diverged or failed
    pruned_after: int | None = None  # rounds

    @property
    def command(self) -> str:
        """Command that reproduces the runs."""
        seeds = [text.removeprefix("seed=") for job in self.overrides for text in job if text.startswith("seed=")]
        shared = [text for text in self.overrides[0] if not text.startswith("seed=")]
        is_experiment = any(text.startswith("experiment=") for text in shared)
        seed = [f"seed={','.join(seeds)}"] if seeds else ["seeds=1"] if is_experiment else []
        return shlex.join(["fco-run", *(["-m"] if is_experiment or len(seeds) > 1 else []), *shared, *seed])


@dataclass
class SearchRecord:
    """Settings of one search so far."""

    space: Space
    objectives: list[Objective]
    settings: Search
    folder: Path  # of this record
    trials: list[Setting] = field(default_factory=list)

    @property
    def best(self) -> list[Setting]:
        """Finished settings from the best to the worst; with several metrics only those on the Pareto front."""
        finished = [one for one in self.trials if one.state == FINISHED]
        signs = [1.0 if objective.direction == "minimize" else -1.0 for objective in self.objectives]

        def costs(one: Setting) -> list[float]:
            return [sign * value for sign, value in zip(signs, one.values, strict=True)]

        front = [one for one in finished if not any(_dominates(costs(other), costs(one)) for other in finished)]
        return sorted(finished if len(self.objectives) == 1 else front, key=lambda one: (costs(one), one.number))

    @property
    def counts(self) -> Counter[str]:
        return Counter(one.state for one in self.trials)

    def describe(self) -> str:
        """Return the number of settings in every state in one line."""
        counts = ", ".join(f"{count} {state}" for state, count in sorted(self.counts.items()))
        return f"{len(self.trials)} settings: {counts}"

    def write(self) -> None:
        """Write both files; best.yaml only if a setting has finished."""
        keys = [one.key for one in self.space.dimensions]
        names = [objective.metric for objective in self.objectives]
        rows: list[list[object]] = [
            [one.number, one.batch, one.state, *(one.values or (None for _ in names)), one.pruned_after, *one.point]
            for one in self.trials
        ]
        header = ["setting", "batch", "state", *names, "pruned_after", *keys]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / "trials.csv", as_csv(header, rows).encode())
            (self.folder / "best.yaml").unlink(missing_ok=True)
            if best := self.best:
                shown = best if len(names) > 1 else best[:1]
                content = {"objectives": list(map(str, self.objectives)), "best": [self._entry(one) for one in shown]}
                write_atomically(self.folder / "best.yaml", as_yaml(content).encode())
        except OSError as problem:
            raise UserError(f"output_dir: {self.folder} cannot be written: {problem.strerror}") from problem

    def _entry(self, one: Setting) -> dict[str, object]:
        names = [objective.metric for objective in self.objectives]
        return {
            "values": dict(zip(names, one.values, strict=True)),
            "command": one.command,
            "overrides": one.overrides[0] if len(one.overrides) == 1 else one.overrides,
        }


def record_folder(output_dir: Path, space: Space, settings: Search, objectives: Sequence[Objective]) -> Path:
    """Return the folder of a search; a search with a larger budget has the same folder."""
    shared = [text for text in space.shared if not text.startswith(("output_dir=", "threads=", "force="))]
    described: list[object] = [shared, [repr(one) for one in space.dimensions], list(map(str, objectives))]
    described += [settings.batch, settings.seed, settings.sampler, settings.pruning]
    return output_dir / FOLDER / hashlib.sha256(json.dumps(described).encode()).hexdigest()[:12]


def _dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if the first costs are nowhere larger and somewhere smaller."""
    pairs = list(zip(first, second, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
