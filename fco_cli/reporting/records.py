"""A record read back: the run that it is of, checked field by field before anyone relies on it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.client_rate import relative
from fco_cli.errors import UserError
from fco_cli.reporting import gate
from fco_cli.reporting.gate import BadRecord, Kind, check, list_of, mapping_of, one_of, or_empty, or_null
from fco_cli.reporting.text import printable

EXPLODED = 1e3  # times the training loss at the start

LARGEST_TABLE = 64 * gate.MEBIBYTE
LARGEST_MODEL = 1024 * gate.MEBIBYTE
MOST_ROWS, MOST_COLUMNS = 10**6, 200

Curves = dict[str, np.ndarray]  # metric -> value at every evaluated round; "round" is one of them

RESULT = {
    "status": one_of("finished", "diverged"),
    "run_id": gate.IDENTITY,
    "identity.family": gate.IDENTITY,
    "identity.problem": gate.IDENTITY,
    "identity.run": gate.IDENTITY,
    "federated": gate.FLAG,
    "uses": list_of(gate.NAME, 100),
    "task": gate.NAME,
    "algo": gate.NAME,
    "seed": gate.SEED,
    "rounds": gate.COUNT,
    "diverged_round": or_null(gate.COUNT),
    "seconds": or_null(gate.NOT_NEGATIVE),
    "smoothness": or_null(gate.POSITIVE),
    "main_metric": gate.METRIC,
    "final": mapping_of(gate.METRIC, or_null(gate.NUMBER)),
    "versions": mapping_of(gate.LINE, gate.LINE),
    "python": gate.LINE,
    "git_revision": or_null(gate.LINE),
    "finished_at": gate.TIME,
}
CONFIG = {
    "task": gate.GROUP,
    "task.name": gate.NAME,
    "algo": gate.GROUP,
    "algo.name": gate.NAME,
    "regularizer": gate.GROUP,
    "regularizer.name": gate.NAME,
    "mirror": gate.GROUP,
    "transform": gate.GROUP,
    "hparams": gate.GROUP,
    "seed": gate.SEED,
    "profile.name": gate.NAME,
    "profile.scale": gate.POSITIVE,
    "profile.note": gate.TEXT,
}
RATES = {
    "client_lr": Kind("a finite number > 0, auto or a multiple of 1/L", lambda rate: _is_rate(rate)),
    "server_lr": gate.POSITIVE,
}
EXPERIMENT = {
    "experiment.name": gate.NAME,
    "experiment.title": gate.TEXT,
    "experiment.select.metric": gate.METRIC,
    "experiment.select.mode": one_of("max", "min"),
    "experiment.select.last": gate.POSITIVE_COUNT,
    "experiment.select.second": gate.METRIC,
    "experiment.panels": list_of(gate.METRIC, 12),
    "experiment.paper": gate.TEXT,
    "experiment.twin_of": or_empty(gate.NAME),
}


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
        return gate.read_arrays(self.folder / "model.npz", LARGEST_MODEL)

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
    result = gate.read_json(folder / "result.json")
    if "identity" not in result and "config_hash" in result:
        raise BadRecord("made by an older version; run it again")
    check("result.json", result, RESULT)
    config = {"transform": {"name": "none"}} | gate.read_yaml(folder / "config.yaml")  # once there were none
    check("config.yaml", config, CONFIG | (EXPERIMENT if config.get("experiment") is not None else {}))
    rates = [name for name in ("client_lr", "server_lr") if name in result["uses"]]
    check("config.yaml", config, {f"hparams.{name}": RATES[name] for name in rates})
    if "client_lr" in rates and relative(config["hparams"]["client_lr"]) is not None:
        check("result.json", result, {"client_lr": gate.POSITIVE})
    for name, value in {"task": config["task"]["name"], "algo": config["algo"]["name"], "seed": config["seed"]}.items():
        if result[name] != value:
            raise BadRecord(f"result.json is of {name} {result[name]}, config.yaml of {value}")
    if result["run_id"] != result["identity"]["run"]:
        raise BadRecord("result.json: run_id and identity.run differ")
    run = RecordedRun(folder, config, result, _read_curves(folder / "metrics.csv"))
    _check_together(run)
    return run


def _is_rate(value: object) -> bool:
    try:
        return relative(value) is not None or gate.POSITIVE.holds(value)
    except UserError:
        return False


def _read_curves(path: Path) -> Curves:
    header, _, body = gate.read_bounded(path, LARGEST_TABLE).partition(b"\n")
    try:
        names = header.decode().split(",")
    except UnicodeDecodeError:
        raise BadRecord("metrics.csv: its first line is not text") from None
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names) or not all(map(gate.METRIC.holds, names)):
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
