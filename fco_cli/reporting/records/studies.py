"""Grouping of recorded runs into studies: the runs of one experiment that are comparable in one figure."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fco_cli.plugins import load_recorded
from fco_cli.reporting.records.glm import RecordedGlm
from fco_cli.reporting.records.paths import RecordedPath, Theorems
from fco_cli.reporting.records.runs import (
    RecordedRun,
    finished_below,
    read_record,
    records_below,
    rounds_table,
    runs_table,
)
from fco_cli.reporting.records.table1 import RecordedTable1
from fco_cli.reporting.style import OPTIMUM, algorithm_order, metric_style
from fco_cli.reporting.text import printable
from fco_cli.results import NETWORK
from fco_cli.typed_files import BadRecord

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
R = TypeVar("R")
Slugged = TypeVar("Slugged", RecordedPath, RecordedGlm, RecordedTable1)

QUALITIES = ("auc", "concordance", "r2", "d2", "accuracy")  # on held-out rows; the first one recorded is drawn
BATCH_SIZE = 250  # records per task of a reading process: about 10 MB


@dataclass(frozen=True)
class Rule:
    """Selection rule for learning rates: the mean of a metric over the last rounds."""

    metric: str
    mode: str  # max or min
    last: int  # number of rounds to average; 1 is the last round only
    second: str = "objective"  # metric that breaks ties: the smallest wins

    def __str__(self) -> str:
        window = "at the last round" if self.last == 1 else f"mean of the last {self.last} rounds"
        return f"{metric_style(self.metric).label}, {window}"

    @property
    def other(self) -> Rule | None:
        """Rule that selects by the second metric; None if the experiment does not name one."""
        return None if self.second in ("objective", self.metric) else replace(self, metric=self.second, mode="min")


@dataclass
class RecordedStudy:
    """Runs of one experiment at one scale on one problem; they differ in algorithm, learning rates and seed."""

    name: str  # of the experiment; of the task for runs without an experiment
    title: str
    profile: str
    scale: float
    rule: Rule
    panels: list[str]
    runs: list[RecordedRun]
    note: str = ""  # the profile's note for figures
    paper: str = ""  # the corresponding figure of the paper
    twin_of: str = ""  # experiment whose variant with an extended grid this is
    slug: str = ""  # base of the study's file names, unique in a report
    variant: str = ""  # settings that distinguish it from other studies of the same name and profile

    @property
    def algorithms(self) -> list[str]:
        return sorted({run.algo for run in self.runs}, key=algorithm_order)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def heading(self) -> str:
        extras = [f"profile {self.profile}" if self.profile != "paper" else "", self.variant]
        extra = "; ".join(filter(None, extras))
        return f"{self.title} ({extra})" if extra else self.title

    def of(self, algo: str) -> list[RecordedRun]:
        return [run for run in self.runs if run.algo == algo]


@dataclass
class Results:
    """Records read from folders, with the folders that were left out and the reasons."""

    studies: list[RecordedStudy] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    theory: Theorems | None = None  # of experiment=theory
    paths: list[RecordedPath] = field(default_factory=list)  # of experiment=path
    glms: list[RecordedGlm] = field(default_factory=list)  # of experiment=glm
    tables: list[RecordedTable1] = field(default_factory=list)  # of experiment=table1
    damaged: list[tuple[Path, str]] = field(default_factory=list)  # readable records with files that cannot be drawn

    def named(self, prefix: str) -> list[RecordedStudy]:
        """Return the studies of the experiments whose names begin with a prefix."""
        return [study for study in self.studies if study.name.startswith(prefix)]

    def study(self, name: str) -> RecordedStudy | None:
        """Return the experiment's study with the largest scale, then the most runs; None if it was not run."""
        same = [study for study in self.studies if study.name == name]
        return max(same, key=lambda study: (study.scale, len(study.runs)), default=None)

    def table(self) -> pd.DataFrame:
        """Return a table with a row per run: identity, status, final metrics and configuration."""
        return runs_table(self.studies)

    def rounds(self) -> pd.DataFrame:
        """Return a table with a row per evaluated round of every run."""
        return rounds_table(self.studies)


def collect(folders: Iterable[Path]) -> Results:
    """Read every record below the folders; unreadable records are listed in `left_out`."""
    results = Results()
    read: dict[Path, RecordedRun] = {}
    for folder in folders:
        for theory in _read_kind(folder, "theory", Theorems.read, results):
            results.theory = theory
        for path in _read_kind(folder, "path", RecordedPath.read, results):
            results.paths.append(_with_unique_slug(path, results.paths))
        for glm in _read_kind(folder, "glm", RecordedGlm.read, results):
            results.glms.append(_with_unique_slug(glm, results.glms))
        for table in _read_kind(folder, "table1", RecordedTable1.read, results):
            results.tables.append(_with_unique_slug(table, results.tables))
        records = [record for record in records_below(folder) if record.resolve() not in read]
        batches = [records[low : low + BATCH_SIZE] for low in range(0, len(records), BATCH_SIZE)]
        for record, run in zip(records, itertools.chain(*parallel_map(_read, batches, min_items=5)), strict=True):
            if isinstance(run, BadRecord):
                results.left_out.append((record, str(run)))
            else:
                read[record.resolve()] = run
    load_recorded(run.result.get("plugins", {}) for run in read.values())
    # Copies of a run count once per experiment; a run of an experiment and of its twin counts in both.
    distinct = {(run.run_id, _experiment(run)["name"]): run for run in read.values()}
    runs, older = _keep_newest(distinct.values())
    results.left_out += older
    results.studies = studies_of(with_optimality_gaps(runs))
    return results


def parallel_map(function: Callable[[T], R], items: Sequence[T], min_items: int) -> list[R]:
    """Return `function` of every item, in order; use one process per core from `min_items` items on.

    Starting the processes takes about a second.
    """
    cores = os.cpu_count() or 1
    if cores == 1 or len(items) < min_items:
        return [function(item) for item in items]
    from joblib import Parallel, delayed

    return list(Parallel(n_jobs=min(cores, len(items)))(delayed(function)(item) for item in items))


def _read(folders: list[Path]) -> list[RecordedRun | BadRecord]:
    """Read records; return the exception in place of an unreadable one."""
    runs: list[RecordedRun | BadRecord] = []
    for folder in folders:
        try:
            runs.append(read_record(folder))
        except BadRecord as problem:
            runs.append(problem)
    return runs


def _read_kind(folder: Path, kind: str, read: Callable[[Path], T], results: Results) -> Iterator[T]:
    """Yield the records of an experiment that is not a run; list unreadable ones in `left_out`."""
    for record in finished_below(folder, kind):
        try:
            yield read(record)
        except BadRecord as problem:
            results.left_out.append((record, str(problem)))


def _with_unique_slug(record: Slugged, others: list[Slugged]) -> Slugged:
    """Return the record with a slug that no other one has."""
    slug, taken = record.slug, {one.slug for one in others}
    number = next(i for i in itertools.count(1) if (slug if i == 1 else f"{slug}_{i}") not in taken)
    return record if number == 1 else replace(record, slug=f"{slug}_{number}")


def _keep_newest(runs: Iterable[RecordedRun]) -> tuple[list[RecordedRun], list[tuple[Path, str]]]:
    """Split runs into the newest of each configuration and the older ones, which used other data or code."""
    newest: dict[str, RecordedRun] = {}
    older = []
    parts = (
        "task", "algo", "model", "regularizer", "mirror", "transform", "hparams", *NETWORK,
        "seed", "experiment", "profile", "record_clients",
    )  # fmt: skip
    for run in sorted(runs, key=lambda run: (run.finished_at, str(run.folder))):
        key = json.dumps([run.config.get(part) for part in parts], sort_keys=True)
        if key in newest:
            older.append((newest[key].folder, f"superseded by a newer run with other data or code: {run.folder.name}"))
        newest[key] = run
    return list(newest.values()), older


def with_optimality_gaps(runs: list[RecordedRun]) -> list[RecordedRun]:
    """Return the runs with their objective's distance to the smallest certified objective of the same problem."""
    optima: dict[str, float] = {}
    for run in runs:
        value = run.final.get("objective")
        if run.algo == OPTIMUM and not run.diverged and value is not None:
            optima[run.identity["problem"]] = min(value, optima.get(run.identity["problem"], value))

    def gap(run: RecordedRun) -> float | None:
        value, optimum = run.final.get("objective"), optima.get(run.identity["problem"])
        return None if run.diverged or value is None or optimum is None else value - optimum

    return [replace(run, optimality_gap=gap(run)) for run in runs]


# Grouping of runs into studies.


def studies_of(runs: list[RecordedRun]) -> list[RecordedStudy]:
    """Group runs into studies: federated runs define the studies, baselines join every study of their problem."""
    studies: dict[tuple[str, ...], list[RecordedRun]] = {}
    hosts: dict[tuple[str, str], list[tuple[str, ...]]] = {}  # by experiment and family of problems
    for run in sorted(runs, key=lambda run: not run.federated):
        name, profile, family = _experiment(run)["name"], run.config["profile"]["name"], run.identity["family"]
        keys: list[tuple[str, ...]] = [(name, profile, family, _shared_settings(run) if run.federated else "")]
        if run.federated and keys[0] not in studies:
            hosts.setdefault((name, family), []).append(keys[0])
        if not run.federated:
            # `optimum` does not depend on the profile: its record is used for the same seed of every profile
            joined = [
                key
                for key in hosts.get((name, family), ())
                if key[1] == profile or (run.algo == OPTIMUM and run.seed in {one.seed for one in studies[key]})
            ]
            keys = joined or keys
        for key in keys:
            studies.setdefault(key, []).append(run)
    grouped = [_study(members) for members in studies.values()]
    grouped.sort(key=lambda study: (_natural_order(study.name), -study.scale, -len(study.runs), study.runs[0].run_id))
    _set_slugs(grouped)
    return grouped


def _study(runs: list[RecordedRun]) -> RecordedStudy:
    first = next((run for run in runs if run.federated), runs[0])
    experiment, profile = _experiment(first), first.config["profile"]
    select = experiment["select"]
    panels = [metric for metric in dict.fromkeys(experiment["panels"]) if metric in first.curves]
    return RecordedStudy(
        name=experiment["name"],
        title=printable(experiment["title"].strip(), max_length=400),
        profile=profile["name"],
        scale=float(profile["scale"]),
        rule=Rule(select["metric"], select["mode"], select["last"], select["second"]),
        panels=panels or [select["metric"]],
        note=printable(profile["note"]),
        paper=printable(experiment["paper"]),
        twin_of=experiment["twin_of"],
        runs=sorted(runs, key=lambda run: (algorithm_order(run.algo), _rates(run), run.seed, run.run_id)),
    )


def _rates(run: RecordedRun) -> tuple[float, float]:
    return (run.client_lr or 0.0, run.server_lr or 0.0)


def _experiment(run: RecordedRun) -> dict[str, Any]:
    """Return a run's experiment; for a run without one, a default for its task that selects by the objective."""
    task, main = run.config["task"]["name"], run.result["main_metric"]
    file = run.config["task"].get("path")
    quality = [f"validation_{name}" for name in QUALITIES if f"validation_{name}" in run.curves][:1]
    default = {
        "name": task,
        "title": f"{task}: {Path(file).name}" if isinstance(file, str) and file else task,
        "select": {"metric": "objective", "mode": "min", "last": 1, "second": "objective"},
        "panels": ["objective", "validation_loss", main, *quality, "kkt_residual"],
        "paper": "",
        "twin_of": "",
    }
    return run.config.get("experiment") or default


def _shared_settings(run: RecordedRun) -> str:
    """Return the hyperparameters without learning rates, the transform and the simulated network as text.

    All runs of a study share them.
    """
    hparams = {key: value for key, value in run.config["hparams"].items() if not key.endswith("_lr")}
    return json.dumps([hparams, *(run.config[part] for part in ("transform", *NETWORK))], sort_keys=True)


def _set_slugs(studies: list[RecordedStudy]) -> None:
    """Set every study's slug and, among studies of the same experiment and profile, its variant."""
    groups: dict[tuple[str, str], list[RecordedStudy]] = {}
    for study in studies:
        groups.setdefault((study.name, study.profile), []).append(study)
    taken: set[str] = set()
    for (name, profile), group in groups.items():
        settings = [settings_of(study) for study in group]
        keys = list(dict.fromkeys(key for one in settings for key in one))
        varying = [key for key in keys if len({json.dumps(one.get(key)) for one in settings}) > 1]
        for i, (study, mine) in enumerate(zip(group, settings, strict=True), start=1):
            if len(group) > 1:
                text = ", ".join(f"{key}={mine[key]}" for key in varying if key in mine)
                study.variant = printable(text or f"data or code {study.runs[0].identity['family'][:8]}")
            plain = name if profile == "paper" else f"{name}_{profile}"
            study.slug = plain if i == 1 else f"{plain}_{i}"  # the largest keeps the plain name
            while study.slug in taken:
                study.slug += "_"
            taken.add(study.slug)


def settings_of(study: RecordedStudy) -> dict[str, Any]:
    """Return the settings of a study under dotted names, without learning rates."""
    config = study.runs[0].config
    sections = ("task", "model", "regularizer", "mirror", "transform", "hparams", *NETWORK)
    flat = {f"{part}.{key}": value for part in sections for key, value in config[part].items()}
    return {key: value for key, value in flat.items() if not key.endswith("_lr")}


NUMERALS = {"i": 1, "ii": 2, "iii": 3, "iv": 4}


def _natural_order(name: str) -> list[Any]:
    """Return a sort key that orders Roman numerals: lasso_ii before lasso_iv, and before lasso_ii_extended."""
    return [(NUMERALS.get(part, 9), part) if i else (0, part) for i, part in enumerate(name.split("_"))]
