"""What `experiment=path` left: the path, its cross-validation, the chosen models and how they do at every client."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fco_cli.reporting.gate import MEBIBYTE, BadRecord, read_arrays, read_bounded, read_json
from fco_cli.reporting.text import printable

if TYPE_CHECKING:
    import pandas as pd

CHOICES = ("min", "1se")
LARGEST = 256 * MEBIBYTE


@dataclass(frozen=True)
class RecordedPath:
    """A path that is done."""

    folder: Path
    slug: str
    result: dict[str, Any]
    table: pd.DataFrame  # a line per value, the null model's end first
    weights: np.ndarray  # [J, n], of the regularized features; of a matrix its singular values
    names: list[str]  # [n]
    clients: pd.DataFrame  # by choice and client
    calibration: pd.DataFrame | None
    models: dict[str, pd.DataFrame]  # the chosen models' non-zero weights, largest first

    @classmethod
    def read(cls, folder: Path) -> RecordedPath:
        result = read_json(folder / "result.json")
        try:
            table, clients = _table(folder / "path.csv"), _table(folder / "clients.csv")
            arrays = read_arrays(folder / "path.npz", LARGEST)
            weights, names = _weights(result, arrays["models"], folder)
            for choice in CHOICES:
                place = result["chosen"][choice]["place"]
                if not 0 <= place < len(table) == len(weights):
                    raise BadRecord("result.json: its choice is none of the path's models")
            known = {"cv_loss", "cv_error", "nonzeros", result["dial"]} <= set(table) and "loss" in clients
            if not known or not np.isfinite(weights).all():
                raise BadRecord("path.csv, clients.csv or path.npz: not the numbers of a path")
            optional = [_table(path) if path.exists() else None for path in _others(folder)]
            return cls(
                folder, f"path_{printable(result['task'])}", result, table, weights, names, clients, optional[0],
                {name: one for name, one in zip(CHOICES, optional[1:], strict=True) if one is not None},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, IndexError) as problem:
            if isinstance(problem, BadRecord):
                raise
            raise BadRecord(f"result.json: not that of a path: {printable(str(problem))}") from problem

    @property
    def dial(self) -> str:
        return self.result["dial"]

    @property
    def values(self) -> np.ndarray:
        return self.table[self.dial].to_numpy()

    @property
    def heading(self) -> str:
        result = self.result
        how = {"rows": "rows of every client", "clients": "whole clients", "each_client": "one client at a time"}
        held = how.get(result["by"], result["by"])
        data = f"{result['rows']} rows of {result['clients']} clients, {result['folds']} folds by {held}"
        return printable(f"{result['task']}: the path of {result['regularizer']}, {data}")

    @property
    def metric(self) -> str:
        """What tells clients apart."""
        return next((name for name in ("auc", "accuracy", "r2") if name in self.clients), "loss")


def _others(folder: Path) -> list[Path]:
    return [folder / "calibration.csv", *(folder / choice / "model.csv" for choice in CHOICES)]


def _table(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(io.BytesIO(read_bounded(path, 64 * MEBIBYTE)))
    except (ValueError, pd.errors.ParserError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord(f"{path.name}: not a table: {printable(str(problem))}") from problem


def _weights(result: dict[str, Any], models: np.ndarray, folder: Path) -> tuple[np.ndarray, list[str]]:
    """The weights of the path's models; the blocks' shapes are those of a chosen model."""
    blocks = read_arrays(folder / "min" / "model.npz", LARGEST)
    shapes = [(name, values.shape) for name, values in blocks.items() if not name.startswith("bias")]
    size = sum(int(np.prod(shape)) for _, shape in shapes)
    if models.ndim != 2 or models.shape[1] < size:
        raise BadRecord("path.npz: its models are not those of min/model.npz")
    weights = models[:, :size]  # regularized blocks come first in a linear model
    if str(result["regularizer"]).startswith("nuclear") and len(shapes[0][1]) == 2:
        singular = np.linalg.svd(weights.reshape(len(weights), *shapes[0][1]), compute_uv=False)
        return singular, [f"singular value {i + 1}" for i in range(singular.shape[1])]
    names = result["features"] or [f"weight {i + 1}" for i in range(size)]
    if len(names) != size:  # several outputs
        names = [f"{name}, output {k + 1}" for k in range(size // len(names)) for name in names]
    return weights, [printable(name, longest=40) for name in names]
