"""From folders of records to studies: the runs of one experiment that may stand in one figure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from fco_cli.reporting.style import BASELINES, algorithm_order, metric_style

if TYPE_CHECKING:
    import pandas as pd

EXPLODED = 1e3  # times the training loss at the start

Curves = dict[str, np.ndarray]  # metric -> value at every evaluated round; "round" is one of them


@dataclass(frozen=True)
class Rule:
    """How an experiment chooses its learning rates: by the mean of a metric over the last rounds."""

    metric: str
    mode: str  # max or min
    last: int  # rounds; 1 is the last one

    def __str__(self) -> str:
        window = "at the last round" if self.last == 1 else f"mean of the last {self.last} rounds"
        return f"{metric_style(self.metric).label}, {window}"


@dataclass(frozen=True)
class Run:
    """One record."""

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]
    curves: Curves

    @property
    def algo(self) -> str:
        return self.config["algo"]["name"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @cached_property
    def exploded(self) -> np.ndarray:
        """At which evaluated rounds the training loss was out of all bounds, although the weights were finite."""
        loss = self.curves["train_loss"]
        return ~(loss <= EXPLODED * loss[0])  # also where it is not a number

    @property
    def diverged(self) -> bool:
        """As its record says, or because it ended exploded."""
        return self.result["status"] == "diverged" or bool(self.exploded[-1])

    @property
    def client_lr(self) -> float | None:
        return None if self.algo == "optimum" else float(self.config["hparams"]["client_lr"])

    @property
    def server_lr(self) -> float | None:
        return None if self.algo in BASELINES else float(self.config["hparams"]["server_lr"])

    @cached_property
    def megabytes(self) -> np.ndarray:
        """Sent in both directions until every evaluated round."""
        return (self.curves["bytes_up"] + self.curves["bytes_down"]) / 1e6


@dataclass
class Study:
    """The runs of one experiment at one scale on one problem: they differ in algorithm, learning rates and seed."""

    name: str  # of the experiment; of the task where a run has none
    title: str
    profile: str
    scale: float
    rule: Rule
    panels: list[str]
    runs: list[Run]
    slug: str = ""  # names the study's files, unique in a report
    variant: str = ""  # what tells it from another study of the same name and profile

    @property
    def algorithms(self) -> list[str]:
        return sorted({run.algo for run in self.runs}, key=algorithm_order)

    @property
    def heading(self) -> str:
        extras = [f"profile {self.profile}" if self.profile != "paper" else "", self.variant]
        extra = "; ".join(filter(None, extras))
        return f"{self.title} ({extra})" if extra else self.title

    def of(self, algo: str) -> list[Run]:
        return [run for run in self.runs if run.algo == algo]


@dataclass
class Results:
    """All that was found: studies, and the folders that had to be left out, each with the reason."""

    studies: list[Study] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)

    def study(self, name: str) -> Study | None:
        """The experiment's study at the largest scale, with the most runs."""
        same = [study for study in self.studies if study.name == name]
        return max(same, key=lambda study: (study.scale, len(study.runs)), default=None)

    def table(self) -> pd.DataFrame:
        """A row per run: what it was, how it ended, its final metrics."""
        import pandas as pd

        return pd.DataFrame([_row(study, run) for study in self.studies for run in study.runs])


def collect(folders: Iterable[Path]) -> Results:
    """Read every record below the folders; a record that cannot be read is named and left out."""
    results, runs = Results(), {}
    for folder in folders:
        for place in _records_below(folder):
            if place.resolve() in runs:
                continue
            try:
                runs[place.resolve()] = read_record(place)
            except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as problem:
                results.left_out.append((place, _reason(problem)))
    results.studies = studies_of(list(runs.values()))
    return results


def _records_below(folder: Path) -> Iterator[Path]:
    places = {path.parent for name in ("config.yaml", "result.json") for path in folder.rglob(name)}
    for place in sorted(places):
        hidden = any(part.startswith(".") for part in place.relative_to(folder).parts)
        if not hidden and not (place / "theory.md").exists():  # experiment=theory has its own table and figure
            yield place


def read_record(folder: Path) -> Run:
    """A whole record, or an exception that says what is wrong with it."""
    if not (folder / "result.json").exists():
        raise ValueError("unfinished: it has no result.json yet")
    result = json.loads((folder / "result.json").read_text())
    if result["status"] not in ("finished", "diverged"):
        raise ValueError(f"result.json: unknown status {result['status']!r}")
    config = yaml.load((folder / "config.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for key in ("task", "algo", "regularizer", "hparams", "seed"):
        if not isinstance(config, dict) or key not in config:
            raise ValueError(f"config.yaml: no key {key!r}")
    run = Run(folder, config, result, _read_curves(folder / "metrics.csv"))
    if not run.diverged and run.curves["round"][-1] != result["rounds"]:
        raise ValueError(f"metrics.csv ends at round {run.curves['round'][-1]:g} of {result['rounds']}")
    wanted = _rule(run).metric
    if wanted not in run.curves:
        raise ValueError(f"metrics.csv has no column {wanted!r}, by which the experiment selects")
    return run


def _read_curves(path: Path) -> Curves:
    with path.open() as file:
        header = file.readline().strip().split(",")
        for name in ("round", "train_loss", "bytes_up", "bytes_down"):
            if name not in header:
                raise ValueError(f"metrics.csv: no column {name!r}")
        lines = file.readlines()
    if not lines or not lines[-1].endswith("\n"):
        raise ValueError("metrics.csv is cut off")
    table = np.loadtxt(lines, delimiter=",", ndmin=2)
    if table.shape[1] != len(header):
        raise ValueError(f"metrics.csv: {table.shape[1]} columns under {len(header)} names")
    return dict(zip(header, table.T, strict=True))


def _reason(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"no key {problem}"
    if isinstance(problem, OSError):
        return f"{Path(problem.filename).name}: {problem.strerror}" if problem.filename else str(problem)
    if isinstance(problem, json.JSONDecodeError):
        return f"result.json is not JSON: {problem}"
    return " ".join(str(problem).split())


# Runs become studies.


def studies_of(runs: list[Run]) -> list[Study]:
    """Federated runs decide which studies there are; baselines join every study whose problem they solve."""
    studies: dict[tuple[Any, ...], list[Run]] = {}
    baselines = [run for run in runs if run.algo in BASELINES]
    for run in runs:
        if run.algo not in BASELINES:
            key = (_experiment(run)["name"], _profile(run)["name"], _problem(run), _work(run))
            studies.setdefault(key, []).append(run)
    for run in baselines:
        name, profile, problem = _experiment(run)["name"], _profile(run)["name"], _problem(run)
        # `optimum` does not depend on the profile: the first one that asked for it has made it for all
        hosts = [
            key for key in studies
            if key[0] == name and key[2] == problem and (run.algo == "optimum" or key[1] == profile)
        ] or [(name, profile, problem, "")]  # fmt: skip
        for key in hosts:
            studies.setdefault(key, []).append(run)
    made = [_study(members) for members in studies.values()]
    made.sort(key=lambda study: (_natural(study.name), -study.scale, -len(study.runs)))
    for study in made:
        twins = [other for other in made if (other.name, other.profile) == (study.name, study.profile)]
        study.slug = study.name if study.profile == "paper" else f"{study.name}_{study.profile}"
        if len(twins) > 1:
            study.variant = _differences(study, twins)
        if twins[0] is not study:  # the largest keeps the plain name
            study.slug += f"_{twins.index(study) + 1}"
    return made


def _study(runs: list[Run]) -> Study:
    first = next((run for run in runs if run.algo not in BASELINES), runs[0])
    experiment, profile = _experiment(first), _profile(first)
    unique = {run.result.get("run_id", str(run.folder)): run for run in runs}  # the same run, found in two places
    panels = [metric for metric in experiment["panels"] if metric in first.curves]
    return Study(
        name=experiment["name"],
        title=experiment["title"],
        profile=profile["name"],
        scale=float(profile["scale"]),
        rule=_rule(first),
        panels=panels or [_rule(first).metric],
        runs=sorted(unique.values(), key=lambda run: (algorithm_order(run.algo), _rates(run), run.seed)),
    )


def _rates(run: Run) -> tuple[float, float]:
    return (run.client_lr or 0.0, run.server_lr or 0.0)


def _experiment(run: Run) -> dict[str, Any]:
    """The experiment that a run is of; a run on its own counts as one of its task, chosen by the objective."""
    task, main = run.config["task"]["name"], run.result.get("main_metric", "objective")
    alone = {
        "name": task,
        "title": f"{task}: runs outside of any experiment",
        "select": {"metric": "objective", "mode": "min", "last": 1},
        "panels": list(dict.fromkeys(("objective", "validation_loss", main, "kkt_residual"))),
    }
    return run.config.get("experiment") or alone


def _rule(run: Run) -> Rule:
    select = _experiment(run)["select"]
    if select["mode"] not in ("max", "min"):
        raise ValueError(f"config.yaml: experiment.select.mode is {select['mode']!r}, must be max or min")
    return Rule(select["metric"], select["mode"], int(select["last"]))


def _profile(run: Run) -> dict[str, Any]:
    return run.config.get("profile") or {"name": "paper", "scale": 1.0}


def _problem(run: Run) -> str:
    parts = {key: run.config.get(key) for key in ("task", "regularizer", "mirror")}
    return json.dumps(parts | {"weighting": run.config["hparams"].get("weighting")}, sort_keys=True)


def _work(run: Run) -> str:
    """The hyper-parameters that all runs of a study share."""
    return json.dumps({k: v for k, v in run.config["hparams"].items() if not k.endswith("_lr")}, sort_keys=True)


def _settings(study: Study) -> dict[str, Any]:
    config = study.runs[0].config
    sections = ("task", "regularizer", "mirror", "hparams")
    flat = {f"{part}.{key}": value for part in sections for key, value in config.get(part, {}).items()}
    return {key: value for key, value in flat.items() if not key.endswith("_lr")}


def _differences(study: Study, twins: list[Study]) -> str:
    mine, others = _settings(study), [_settings(other) for other in twins]
    return ", ".join(
        f"{key}={value}" for key, value in mine.items() if any(other.get(key) != value for other in others)
    )


NUMERALS = {"i": 1, "ii": 2, "iii": 3, "iv": 4}


def _natural(name: str) -> list[Any]:
    """lasso_ii before lasso_iv, a milder twin after its elder."""
    return [(NUMERALS.get(part, 9), part) if i else (0, part) for i, part in enumerate(name.split("_"))]


def _row(study: Study, run: Run) -> dict[str, Any]:
    result = run.result
    return {
        "experiment": study.name,
        "profile": study.profile,
        "study": study.slug,
        "task": run.config["task"]["name"],
        "algo": run.algo,
        "regularizer": run.config["regularizer"]["name"],
        "strength": run.config["regularizer"].get("strength", run.config["regularizer"].get("radius")),
        "client_lr": run.client_lr,
        "server_lr": run.server_lr,
        "seed": run.seed,
        "status": "diverged" if run.diverged else "finished",
        "diverged_round": result.get("diverged_round"),
        "rounds": result["rounds"],
        "seconds": result.get("seconds"),
        "optimality_gap": result.get("optimality_gap"),
        **(result.get("final") or {}),
        "run_id": result.get("run_id"),
        "folder": str(run.folder),
    }
