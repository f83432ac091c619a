"""A record read back: the run that it is of, checked field by field before anyone relies on it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from fco_cli.client_rate import relative
from fco_cli.errors import UserError
from fco_cli.reporting import gate
from fco_cli.reporting.text import printable
from fco_cli.results import METRIC, Metric, Name, Positive, RunResult, Seed, read_result
from fco_cli.typed_files import MEBIBYTE, BadRecord, converted, read_arrays, read_bounded

EXPLODED = 1e3  # times the training loss at the start

LARGEST_TABLE = 64 * MEBIBYTE
LARGEST_MODEL = 1024 * MEBIBYTE
MOST_ROWS, MOST_COLUMNS = 10**6, 200
METRIC_NAME = re.compile(METRIC)

Curves = dict[str, np.ndarray]  # metric -> value at every evaluated round; "round" is one of them

Text = Annotated[str, Meta(max_length=400)]
Group = dict[str, Any]


class Named(msgspec.Struct):
    """A group of the configuration that has a name."""

    name: Name


class Select(msgspec.Struct):
    """How an experiment chooses."""

    metric: Metric
    mode: Literal["max", "min"]
    last: Annotated[int, Meta(ge=1, le=10**12)]
    second: Metric


class Experiment(msgspec.Struct):
    """The experiment that a run is of."""

    name: Name
    title: Text
    select: Select
    panels: Annotated[list[Metric], Meta(max_length=12)]
    paper: Text
    twin_of: Annotated[str, Meta(pattern=r"\A(\w[\w.-]{0,79})?\Z")]


class Profile(msgspec.Struct):
    """The scale at which an experiment was run."""

    name: Name
    scale: Positive
    note: Text


class RunConfig(msgspec.Struct):
    """Schema of config.yaml, as much of it as a report relies on."""

    task: Named
    algo: Named
    regularizer: Named
    mirror: Group
    hparams: Group
    seed: Seed
    profile: Profile
    transform: Group = {}
    experiment: Experiment | None = None


@dataclass(frozen=True)
class RecordedRun:
    """One record, whole and checked."""

    folder: Path
    config: dict[str, Any] = field(repr=False)
    result: dict[str, Any] = field(repr=False)
    curves: Curves = field(repr=False)
    optimality_gap: float | None = None  # to the optimum of its problem, where a record of that is at hand

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
        """Of the run, of its problem (with the seed) and of the problem's family (whatever the seed)."""
        return self.result["identity"]

    @property
    def final(self) -> dict[str, float | None]:
        return self.result["final"]

    @property
    def finished_at(self) -> datetime:
        return datetime.fromisoformat(self.result["finished_at"])

    @cached_property
    def exploded(self) -> np.ndarray:
        """At which evaluated rounds the training loss was out of all bounds, although the weights were finite."""
        loss = self.curves["train_loss"]
        return ~(loss / EXPLODED <= abs(loss[0]))  # also where it is not a number

    @property
    def diverged(self) -> bool:
        """As its record says, or because it ended exploded."""
        return self.result["status"] == "diverged" or bool(self.exploded[-1])

    @property
    def status(self) -> str:
        return "diverged" if self.diverged else "finished"

    @property
    def client_lr(self) -> float | None:
        return self._rate("client_lr") if self.relative is None else self.result["client_lr"]

    @property
    def relative(self) -> float | None:
        """How many times 1/L its client_lr is, where it took it from the data."""
        return relative(self.config["hparams"]["client_lr"]) if "client_lr" in self.result["uses"] else None

    @property
    def server_lr(self) -> float | None:
        return self._rate("server_lr")

    def _rate(self, name: str) -> float | None:
        return float(self.config["hparams"][name]) if name in self.result["uses"] else None

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's own."""
        return {key: value for key, value in self.config["algo"].items() if key != "name"}

    @cached_property
    def model(self) -> dict[str, np.ndarray]:
        """The final model, an array per block of parameters."""
        return read_arrays(self.folder / "model.npz", LARGEST_MODEL)

    @cached_property
    def megabytes(self) -> np.ndarray:
        """Sent in both directions until every evaluated round."""
        return (self.curves["bytes_up"] + self.curves["bytes_down"]) / 1e6


def records_below(folder: Path) -> Iterator[Path]:
    """The folders of records, finished or not, in order."""
    for place, names in _folders_below(folder):
        if names & {"config.yaml", "result.json"} and not names & {"theory.md", "path.csv"}:
            yield place


def paths_below(folder: Path) -> Iterator[Path]:
    """The folders that experiment=path has finished: a choice among many models."""
    for place, names in _folders_below(folder):
        if {"path.csv", "result.json"} <= names:
            yield place


def theories_below(folder: Path) -> Iterator[Path]:
    """The folders that experiment=theory has finished: no runs, but a table and a figure of its own."""
    for place, names in _folders_below(folder):
        if {"theory.md", "result.json"} <= names:
            yield place


def _folders_below(folder: Path) -> Iterator[tuple[Path, set[str]]]:
    """With the names in them; hidden ones are nobody's records."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(place), {*folders, *files}


def read_record(folder: Path) -> RecordedRun:
    """A whole record, or BadRecord, which says what is wrong with it."""
    if not os.path.lexists(folder / "result.json"):
        raise BadRecord("unfinished: it has no result.json yet")
    result = read_result(folder, RunResult)
    config = {"transform": {"name": "none"}} | gate.read_yaml(folder / "config.yaml")  # once there were none
    converted(config, RunConfig, "config.yaml")
    rates = [name for name in ("client_lr", "server_lr") if name in result["uses"]]
    for name in rates:
        _check_rate(name, config["hparams"].get(name))
    taken = "client_lr" in rates and relative(config["hparams"]["client_lr"]) is not None
    if taken and result.get("client_lr") is None:
        raise BadRecord("result.json: client_lr: expected a number, got null")
    for name, value in {"task": config["task"]["name"], "algo": config["algo"]["name"], "seed": config["seed"]}.items():
        if result[name] != value:
            raise BadRecord(f"result.json is of {name} {result[name]}, config.yaml of {value}")
    run = RecordedRun(folder, config, result, _read_curves(folder / "metrics.csv"))
    _check_together(run)
    return run


def _check_rate(name: str, value: object) -> None:
    """Raise BadRecord unless it is a learning rate; a client's may be relative to 1/L."""
    try:
        if (name == "client_lr" and relative(value) is not None) or (gate.is_number(value) and value > 0):  # type: ignore[operator]
            return
    except UserError:
        pass
    raise BadRecord(f"config.yaml: hparams.{name} is {printable(value)}, must be a finite number > 0")


def _read_curves(path: Path) -> Curves:
    header, _, body = read_bounded(path, LARGEST_TABLE).partition(b"\n")
    try:
        names = header.decode().split(",")
    except UnicodeDecodeError:
        raise BadRecord("metrics.csv: its first line is not text") from None
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names) or not all(map(METRIC_NAME.fullmatch, names)):
        raise BadRecord(f"metrics.csv: its first line is not at most {MOST_COLUMNS} names of metrics, all different")
    for name in ("round", "train_loss", "bytes_up", "bytes_down"):
        if name not in names:
            raise BadRecord(f"metrics.csv: no column {name!r}")
    if not body.strip() or not body.endswith(b"\n"):
        raise BadRecord("metrics.csv is cut off")
    if body.count(b"\n") > MOST_ROWS:
        raise BadRecord(f"metrics.csv: more than {MOST_ROWS} rows")
    try:
        table = np.loadtxt(io.BytesIO(body), delimiter=",", ndmin=2, comments=None)
    except ValueError as problem:
        raise BadRecord(f"metrics.csv: {printable(str(problem))}") from problem
    if table.shape[1] != len(names):
        raise BadRecord(f"metrics.csv: {table.shape[1]} columns under {len(names)} names")
    return dict(zip(names, table.T, strict=True))


def _check_together(run: RecordedRun) -> None:
    """What the files of a record must agree on."""
    curves, result = run.curves, run.result
    rounds = curves["round"]
    whole = np.isfinite(rounds).all() and (rounds == np.floor(rounds)).all()
    if not whole or rounds[0] != 0 or rounds[-1] > 10**12 or (np.diff(rounds) <= 0).any():
        raise BadRecord("metrics.csv: the rounds are not whole numbers that rise from 0")
    for name in ("bytes_up", "bytes_down"):
        if not (np.isfinite(curves[name]).all() and (curves[name] >= 0).all() and curves[name].max() < 1e30):
            raise BadRecord(f"metrics.csv: {name} is not a count")
    if not run.diverged and rounds[-1] != result["rounds"]:
        raise BadRecord(f"metrics.csv ends at round {rounds[-1]:g} of {result['rounds']}")
    if unknown := result["final"].keys() - curves.keys():
        raise BadRecord(f"result.json: final has {min(unknown)!r}, which metrics.csv has not")
    experiment = run.config.get("experiment")
    if experiment and experiment["select"]["metric"] not in curves:
        wanted = experiment["select"]["metric"]
        raise BadRecord(f"metrics.csv has no column {wanted!r}, by which the experiment selects")
    if not experiment and "objective" not in curves:
        raise BadRecord("metrics.csv: no column 'objective'")
