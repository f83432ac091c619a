"""Readers of the records of `experiment=path` and `experiment=theory`, which are not single runs."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.records.predictions import RecordedPredictions, client_sizes, predictions_of, read_predictions
from fco_cli.reporting.records.tables import Columns, read_table
from fco_cli.reporting.records.validation import parse_yaml
from fco_cli.reporting.text import printable
from fco_cli.results import PathResult, TheoryResult, read_result
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_arrays, read_bounded

if TYPE_CHECKING:
    import pandas as pd

CHOICES = ("min", "1se")


PATH = Columns(("cv_loss", "cv_error", "nonzeros"))
METRICS = ("auc", "concordance", "accuracy", "r2", "loss")  # that compare clients; a Cox model has the concordance only
CLIENTS = Columns(("choice", "client", "rows"), ("choice", "client"))
CALIBRATION = Columns(("choice", "rows", "predicted", "observed"), ("choice",))
SLOPE = Columns((*CLIENTS.required, "calibration_slope", "calibration_intercept"), CLIENTS.text)
MODEL = Columns(("feature", "weight"), ("feature", "class"))
MAX_BYTES = 256 * MEBIBYTE


@dataclass(frozen=True)
class RecordedPath:
    """Record of a finished path: cross-validation, chosen models and client metrics."""

    folder: Path
    slug: str
    result: dict[str, Any]
    table: pd.DataFrame  # a row per value of the parameter, null model first
    weights: np.ndarray  # [J, n], of the regularized features; singular values for a matrix
    names: list[str]  # [n]
    clients: pd.DataFrame  # by choice and client
    calibration: pd.DataFrame | None
    models: dict[str, pd.DataFrame]  # the chosen models' non-zero weights, largest first
    histograms: pd.DataFrame | None = None  # of predictions, by choice and client; None in older records

    @classmethod
    def read(cls, folder: Path) -> RecordedPath:
        """Read a record; raise BadRecord if it is invalid."""
        result = read_result(folder, PathResult)
        calibrated = (folder / "calibration.csv").exists()
        calibration = read_table(folder / "calibration.csv", CALIBRATION) if calibrated else None
        table, clients = (
            read_table(folder / "path.csv", PATH),
            read_table(folder / "clients.csv", SLOPE if calibrated else CLIENTS),
        )
        if result["dial"] not in table:
            raise BadRecord(f"path.csv: no column {result['dial']!r}")
        if not set(CHOICES) <= set(clients["choice"]):
            raise BadRecord("clients.csv: no rows for a chosen model")
        if not set(METRICS) & set(clients):
            raise BadRecord(f"clients.csv: none of the columns {', '.join(METRICS)}")
        weights, names = _weights(result, read_arrays(folder / "path.npz", MAX_BYTES).get("models"), folder)
        places = [result["chosen"][choice]["place"] for choice in CHOICES]
        places += [result["stability"]["place"]] if result["stability"] is not None else []
        if not max(places) < len(table) == len(weights):
            raise BadRecord("result.json: a chosen model is not in the path")
        if not np.isfinite(weights).all():
            raise BadRecord("path.npz: models must be finite")
        models = {choice: folder / choice / "model.csv" for choice in CHOICES}
        return cls(
            folder, f"path_{printable(result['task'])}", result, table, weights, names, clients, calibration,
            {choice: read_table(path, MODEL) for choice, path in models.items() if path.exists()},
            read_predictions(folder / "predictions.csv"),
        )  # fmt: skip

    @property
    def parameter(self) -> str:
        """Name of the parameter that varies along the path."""
        return self.result["dial"]

    @property
    def values(self) -> np.ndarray:
        return self.table[self.parameter].to_numpy()

    @property
    def heading(self) -> str:
        result = self.result
        splits = {"rows": "rows of every client", "clients": "whole clients", "each_client": "one client at a time"}
        split = splits.get(result["by"], result["by"])
        data = f"{result['rows']} rows of {result['clients']} clients, {result['folds']} folds by {split}"
        return printable(f"{result['task']}: the path of {result['regularizer']}, {data}")

    def predictions(self, choice: str) -> RecordedPredictions | None:
        """Return the out-of-fold predictions of a chosen model; None if the record has none."""
        if self.histograms is None:
            return None
        lines = self.clients[self.clients["choice"] == choice]
        sizes = client_sizes(lines["client"].tolist(), lines["rows"].tolist())
        return predictions_of(self.histograms, sizes, choice, "out of fold", choice)

    @property
    def metric(self) -> str:
        """Metric by which clients are compared."""
        return next(name for name in METRICS if name in self.clients)


def _weights(result: dict[str, Any], models: np.ndarray | None, folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the weights of the path's models and their names, with the shapes of the chosen model `min`."""
    blocks = read_arrays(folder / "min" / "model.npz", MAX_BYTES)
    shapes = [(name, values.shape) for name, values in blocks.items() if not name.startswith("bias")]
    size = sum(int(np.prod(shape)) for _, shape in shapes)
    if models is None or not shapes or models.ndim != 2 or not 0 < size <= models.shape[1]:
        raise BadRecord("path.npz: models do not match min/model.npz")
    weights = models[:, :size]  # regularized blocks come first in a linear model
    if str(result["regularizer"]).startswith("nuclear") and len(shapes[0][1]) == 2:
        singular = np.linalg.svd(weights.reshape(len(weights), *shapes[0][1]), compute_uv=False)
        return singular, [f"singular value {i + 1}" for i in range(singular.shape[1])]
    names = result["features"] or [f"weight {i + 1}" for i in range(size)]
    if size % len(names):
        raise BadRecord("result.json: features do not match min/model.npz")
    if len(names) != size:  # several outputs
        names = [f"{name}, output {k + 1}" for k in range(size // len(names)) for name in names]
    return weights, [printable(name, max_length=40) for name in names]


@dataclass(frozen=True)
class Theorems:
    """Results of the theory experiment: violations of the bound of each statement."""

    folder: Path
    grid: dict[str, Any]  # configuration of the experiment
    statements: dict[str, tuple[int, int, str]]  # name -> cells, violated, smallest slack
    table: list[list[str]]  # printed table, header first

    @classmethod
    def read(cls, folder: Path) -> Theorems:
        """Read a record; raise BadRecord if it is invalid."""
        result = read_result(folder, TheoryResult)
        table = [[printable(cell) for cell in row] for row in result["table"]]
        statements = {row[0]: (int(row[1]), int(row[2]), row[3]) for row in table[1:]}
        grid = parse_yaml("result.json: config", result["config"])
        return cls(folder, grid, statements, table)

    def figure(self) -> bytes:
        """Return the recorded figure as PNG; raise BadRecord if it is damaged."""
        from PIL import Image

        png = read_bounded(self.folder / "theory.png", 8 * MEBIBYTE)
        try:
            Image.open(io.BytesIO(png)).load()
        except Exception as problem:  # damaged images raise many kinds of exceptions
            raise BadRecord(f"theory.png: {printable(str(problem))}") from problem
        return png
