"""Reader of the record of a run, with validation of every field that reports use, and tables of runs for analysis."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from fco_cli.client_rate import relative
from fco_cli.errors import UserError
from fco_cli.reporting.records.validation import is_number, read_yaml
from fco_cli.reporting.text import printable
from fco_cli.results import METRIC, SIMULATED_SECONDS, Metric, Name, Positive, RunResult, Seed, read_result
from fco_cli.typed_files import MEBIBYTE, BadRecord, converted, read_arrays, read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from fco_cli.reporting.records.studies import RecordedStudy

DIVERGENCE_FACTOR = 1e3  # a training loss above this multiple of its initial value counts as divergence

MAX_TABLE_BYTES = 64 * MEBIBYTE
MAX_MODEL_BYTES = 1024 * MEBIBYTE
MAX_ROWS, MAX_COLUMNS = 10**6, 200
METRIC_NAME = re.compile(METRIC)

Curves = dict[str, np.ndarray]  # metric -> value at every evaluated round; "round" is one of them

Text = Annotated[str, Meta(max_length=400)]
Group = dict[str, Any]


class Named(msgspec.Struct):
    """Named group of the configuration."""

    name: Name


class Select(msgspec.Struct):
    """Selection rule of an experiment."""

    metric: Metric
    mode: Literal["max", "min"]
    last: Annotated[int, Meta(ge=1, le=10**12)]
    second: Metric


class Experiment(msgspec.Struct):
    """Experiment to which a run belongs."""

    name: Name
    title: Text
    select: Select
    panels: Annotated[list[Metric], Meta(max_length=12)]
    paper: Text
    twin_of: Annotated[str, Meta(pattern=r"\A(\w[\w.-]{0,79})?\Z")]


class Profile(msgspec.Struct):
    """Scale of an experiment."""

    name: Name
    scale: Positive
    note: Text


class RunConfig(msgspec.Struct):
    """Schema of the parts of config.yaml that reports use."""

    task: Named
    algo: Named
    regularizer: Named
    mirror: Group
    hparams: Group
    seed: Seed
    profile: Profile
    model: Group = {}
    transform: Group = {}
    participation: Group = {}
    time_model: Group = {}
    aggregation: Group = {}
    experiment: Experiment | None = None


# Groups that older records do not have.
OLDER: dict[str, Any] = {
    "model": {"name": "auto"},
    "transform": {"name": "none"},
    "participation": {"name": "uniform"},
    "time_model": {"name": "none"},
    "aggregation": {"name": "synchronous", "deadline": None},
}


@dataclass(frozen=True)
class RecordedRun:
    """Validated record of one run."""

    folder: Path
    config: dict[str, Any] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    curves: Curves = field(repr=False)
    optimality_gap: float | None = None  # to the certified optimum of its problem, if recorded

    @property
    def algo(self) -> str:
        return self.config["algo"]["name"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def federated(self) -> bool:
        return self.result["federated"]

    @property
    def run_id(self) -> str:
        return self.result["run_id"]

    @property
    def identity(self) -> dict[str, str]:
        """Hashes of the run, of its problem (including the seed) and of the problem's family (excluding the seed)."""
        return self.result["identity"]

    @property
    def final(self) -> dict[str, float | None]:
        return self.result["final"]

    @property
    def finished_at(self) -> datetime:
        return datetime.fromisoformat(self.result["finished_at"])

    @cached_property
    def exploded(self) -> np.ndarray:
        """Mask of the evaluated rounds with a training loss above DIVERGENCE_FACTOR times its start, or NaN."""
        loss = self.curves["train_loss"]
        return ~(loss / DIVERGENCE_FACTOR <= abs(loss[0]))  # True for NaN

    @property
    def diverged(self) -> bool:
        """True if the record has this status or the training loss exploded at the end."""
        return self.result["status"] == "diverged" or bool(self.exploded[-1])

    @property
    def status(self) -> str:
        return "diverged" if self.diverged else "finished"

    @property
    def client_lr(self) -> float | None:
        return self._rate("client_lr") if self.relative_client_lr is None else self.result["client_lr"]

    @property
    def relative_client_lr(self) -> float | None:
        """The client_lr in units of 1/L if it was set relative to the data, else None."""
        return relative(self.config["hparams"]["client_lr"]) if "client_lr" in self.result["uses"] else None

    @property
    def server_lr(self) -> float | None:
        return self._rate("server_lr")

    def _rate(self, name: str) -> float | None:
        return float(self.config["hparams"][name]) if name in self.result["uses"] else None

    @property
    def options(self) -> dict[str, Any]:
        """Options of the algorithm."""
        return {key: value for key, value in self.config["algo"].items() if key != "name"}

    @cached_property
    def model(self) -> dict[str, np.ndarray]:
        """Final model: one array per block of parameters."""
        return read_arrays(self.folder / "model.npz", MAX_MODEL_BYTES)

    @cached_property
    def client_models(self) -> np.ndarray | None:
        """Models of the clients after the last round and, last, their average; None if they were not recorded."""
        path = self.folder / "clients.npz"
        if not os.path.lexists(path):
            return None
        models = read_arrays(path, MAX_TABLE_BYTES).get("weights")
        if models is None or models.ndim == 0 or len(models) < 2 or models.size == 0:
            raise BadRecord("clients.npz: must hold the models of at least one client and their average")
        return models

    @property
    def has_times(self) -> bool:
        """True if the run has simulated seconds."""
        return SIMULATED_SECONDS in self.curves

    @cached_property
    def megabytes(self) -> np.ndarray:
        """Megabytes sent in both directions up to each evaluated round."""
        return (self.curves["bytes_up"] + self.curves["bytes_down"]) / 1e6


OTHER_KINDS = {"theory": "theory.md", "path": "path.csv", "glm": "covariance.npz", "table1": "table1.csv"}  # by kind


def records_below(folder: Path) -> Iterator[Path]:
    """Yield the folders of run records, finished or not, in sorted order."""
    for subfolder, names in _folders_below(folder):
        if names & {"config.yaml", "result.json"} and not names & {*OTHER_KINDS.values()}:
            yield subfolder


def finished_below(folder: Path, kind: str) -> Iterator[Path]:
    """Yield the folders of finished records of an experiment that is not a run: theory, path, glm or table1."""
    for subfolder, names in _folders_below(folder):
        if {OTHER_KINDS[kind], "result.json"} <= names:
            yield subfolder


def _folders_below(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """Yield every folder that is not hidden, with the names of its entries."""
    for subfolder, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(subfolder), {*folders, *files}


def read_record(folder: Path) -> RecordedRun:
    """Read a finished record; raise BadRecord if it is incomplete or invalid."""
    if not os.path.lexists(folder / "result.json"):
        raise BadRecord("unfinished: no result.json")
    result = read_result(folder, RunResult)
    config = OLDER | read_yaml(folder / "config.yaml")
    converted(config, RunConfig, "config.yaml")
    rates = [name for name in ("client_lr", "server_lr") if name in result["uses"]]
    for name in rates:
        _check_rate(name, config["hparams"].get(name))
    is_relative = "client_lr" in rates and relative(config["hparams"]["client_lr"]) is not None
    if is_relative and result.get("client_lr") is None:
        raise BadRecord("result.json: client_lr: expected a number, got null")
    for name, value in {"task": config["task"]["name"], "algo": config["algo"]["name"], "seed": config["seed"]}.items():
        if result[name] != value:
            raise BadRecord(f"result.json has {name} {result[name]}, config.yaml has {value}")
    run = RecordedRun(folder, config, result, _read_curves(folder / "metrics.csv"))
    _check_consistency(run)
    return run


def _check_rate(name: str, value: object) -> None:
    """Raise BadRecord unless the value is a valid learning rate; client_lr may be relative to 1/L."""
    try:
        if (name == "client_lr" and relative(value) is not None) or (is_number(value) and value > 0):  # type: ignore[operator]
            return
    except UserError:
        pass
    raise BadRecord(f"config.yaml: hparams.{name} is {printable(value)}, must be a finite number > 0")


def _read_curves(path: Path) -> Curves:
    header, _, body = read_bounded(path, MAX_TABLE_BYTES).partition(b"\n")
    try:
        names = header.decode().split(",")
    except UnicodeDecodeError:
        raise BadRecord("metrics.csv: the header is not UTF-8 text") from None
    if len(names) > MAX_COLUMNS or len(set(names)) < len(names) or not all(map(METRIC_NAME.fullmatch, names)):
        raise BadRecord(f"metrics.csv: the header must be at most {MAX_COLUMNS} distinct metric names")
    for name in ("round", "train_loss", "bytes_up", "bytes_down"):
        if name not in names:
            raise BadRecord(f"metrics.csv: no column {name!r}")
    if not body.strip() or not body.endswith(b"\n"):
        raise BadRecord("metrics.csv is truncated")
    if body.count(b"\n") > MAX_ROWS:
        raise BadRecord(f"metrics.csv: more than {MAX_ROWS} rows")
    try:
        table = np.loadtxt(io.BytesIO(body), delimiter=",", ndmin=2, comments=None)
    except ValueError as problem:
        raise BadRecord(f"metrics.csv: {printable(str(problem))}") from problem
    if table.shape[1] != len(names):
        raise BadRecord(f"metrics.csv: {table.shape[1]} columns, but {len(names)} names in the header")
    return dict(zip(names, table.T, strict=True))


def _check_consistency(run: RecordedRun) -> None:
    """Raise BadRecord if the files of a record contradict each other."""
    curves, result = run.curves, run.result
    rounds = curves["round"]
    whole = np.isfinite(rounds).all() and (rounds == np.floor(rounds)).all()
    if not whole or rounds[0] != 0 or rounds[-1] > 10**12 or (np.diff(rounds) <= 0).any():
        raise BadRecord("metrics.csv: the rounds must be integers that increase from 0")
    for name in ("bytes_up", "bytes_down"):
        if not (np.isfinite(curves[name]).all() and (curves[name] >= 0).all() and curves[name].max() < 1e30):
            raise BadRecord(f"metrics.csv: {name} must be finite and non-negative")
    if not run.diverged and rounds[-1] != result["rounds"]:
        raise BadRecord(f"metrics.csv ends at round {rounds[-1]:g} of {result['rounds']}")
    if unknown := result["final"].keys() - curves.keys():
        raise BadRecord(f"result.json: final has {min(unknown)!r}, which is not a column of metrics.csv")
    experiment = run.config.get("experiment")
    if experiment and experiment["select"]["metric"] not in curves:
        metric = experiment["select"]["metric"]
        raise BadRecord(f"metrics.csv: no column {metric!r}, the experiment's selection metric")
    if not experiment and "objective" not in curves:
        raise BadRecord("metrics.csv: no column 'objective'")


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists become JSON text."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result |= flatten(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list) else value
    return result


def runs_table(studies: Iterable[RecordedStudy]) -> pd.DataFrame:
    """Return a row per run: identity, status, final metrics and configuration under dotted names."""
    import pandas as pd

    return _uniform(pd.DataFrame([_row(study, run, run.final) for study, run in _distinct_runs(studies)]))


def rounds_table(studies: Iterable[RecordedStudy]) -> pd.DataFrame:
    """Return a row per evaluated round: its metrics, and the identity, status and configuration of its run."""
    import pandas as pd

    pairs = list(_distinct_runs(studies))
    curves = [run.curves for _, run in pairs]
    lengths = [len(curve["round"]) for curve in curves]
    rows = _uniform(pd.DataFrame([_row(study, run, {}) for study, run in pairs]))
    metrics = {
        name: np.concatenate([curve.get(name, np.full(n, np.nan)) for curve, n in zip(curves, lengths, strict=True)])
        for name in dict.fromkeys(name for curve in curves for name in curve)
    }
    if "round" in metrics:
        metrics["round"] = metrics["round"].astype(np.int64)
    return rows.loc[rows.index.repeat(lengths)].reset_index(drop=True).assign(**metrics)


def _uniform(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns of one type: numbers mixed with text, such as a rate and `auto`, become text."""

    def kind(value: object) -> type:
        return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)

    for name in table.select_dtypes(object):
        column = table[name]
        if len({kind(value) for value in column.dropna()}) > 1:
            table[name] = column.map(str, na_action="ignore")
    return table


def _distinct_runs(studies: Iterable[RecordedStudy]) -> list[tuple[RecordedStudy, RecordedRun]]:
    """Return every run once, with its first study; a baseline may be in several studies."""
    distinct: dict[Path, tuple[RecordedStudy, RecordedRun]] = {}
    for study in studies:
        for run in study.runs:
            distinct.setdefault(run.folder, (study, run))
    return list(distinct.values())


def _row(study: RecordedStudy, run: RecordedRun, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    psi = run.config["regularizer"]
    strength = psi.get("strength", psi.get("radius"))
    row = {
        "experiment": study.name,
        "profile": study.profile,
        "study": study.slug,
        "task": run.config["task"]["name"],
        "algo": run.algo,
        "regularizer": psi["name"],
        "strength": strength if is_number(strength) or strength is None else printable(strength),
        "client_lr": run.client_lr,
        "server_lr": run.server_lr,
        "seed": run.seed,
        "status": run.status,
        "diverged_round": run.result["diverged_round"],
        "rounds": run.result["rounds"],
        "seconds": run.result["seconds"],
        "optimality_gap": run.optimality_gap,
        "run_id": run.run_id,
        "folder": printable(str(run.folder), max_length=4096),
    }
    ends = {key: run.result.get(key) or {} for key in ("test", "convergence")}
    return row | _without_known(metrics, row) | _without_known(flatten(ends) | flatten(run.config), {**row, **metrics})


def _without_known(more: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if name not in known}
