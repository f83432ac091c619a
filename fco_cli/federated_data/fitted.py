"""A fitted linear model read back from a record, to predict with: what `export.LinearModel` has written."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, softmax

from fco_cli.errors import UserError
from fco_cli.federated_data.preparation import Preparation
from fco_cli.federated_data.readers import read_features, read_stored
from fco_cli.problem.data import Rows
from fco_cli.problem.layout import Array

LARGEST_FILE = 1 << 30  # bytes


@dataclass(frozen=True)
class FittedModel:
    """For features in their own units, as the preparation encodes them; without one, for sparse rows as they are."""

    loss: str
    classes: list[str] | None
    preparation: Preparation | None
    coef: Array  # [C, D]
    intercept: Array  # [C]

    @classmethod
    def read(cls, record: Path) -> FittedModel:
        """All of it, or one line that says what is wrong with the record."""
        try:
            names = json.loads(_content(record, "linear_model.json"))
            preparation = None
            if not names.get("sparse"):
                preparation = Preparation.of_json(_content(record, "preparation.json").decode(), str(record))
            with np.load(io.BytesIO(_content(record, "linear_model.npz")), allow_pickle=False) as arrays:
                coef, intercept = np.asarray(arrays["coef"], float), np.asarray(arrays["intercept"], float)
            features = coef.shape[-1] if preparation is None else len(preparation.features)
            right = coef.shape == (len(intercept), features) and np.isfinite(coef).all()
            if not right or not np.isfinite(intercept).all() or not isinstance(names["loss"], str):
                raise ValueError("its files do not fit each other")
            return cls(names["loss"], names["classes"], preparation, coef, intercept)
        except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OSError, EOFError) as problem:
            raise UserError(f"{record}: has no model that can be read: {problem}") from problem

    def rows(self, path: Path) -> Rows:
        """Those of a new file, prepared as the model's were."""
        if self.preparation is None:
            return read_stored(path, self.coef.shape[1])
        return self.preparation.encode(read_features(path, self.preparation.table))

    def scores(self, x: Rows) -> Array:
        """[N, C]."""
        return x @ self.coef.T + self.intercept

    def columns(self, scores: Array) -> dict[str, Array]:
        """What there is to say of every row."""
        if self.loss == "logistic":
            positive = expit(scores[:, 0])
            names = self._classes(2)
            return {"prediction": np.array(names, object)[(positive > 0.5).astype(int)],
                    f"probability of {names[1]}": positive.astype(object)}  # fmt: skip
        if self.loss == "softmax":
            names, shares = self._classes(scores.shape[1]), softmax(scores, axis=1)
            found = {"prediction": np.array(names, object)[shares.argmax(axis=1)]}
            return found | {f"probability of {name}": shares[:, c].astype(object) for c, name in enumerate(names)}
        if self.loss == "cox":
            return {"log hazard ratio": scores[:, 0].astype(object)}
        return {"prediction": (np.exp(scores[:, 0]) if self.loss == "poisson" else scores[:, 0]).astype(object)}

    def _classes(self, count: int) -> list[str]:
        return [str(k) for k in range(count)] if self.classes is None else self.classes


def _content(record: Path, name: str) -> bytes:
    path = record / name
    if chosen := [str(record / one) for one in ("min", "1se") if (record / one / name).is_file()]:
        raise UserError(f"{record}: is a path, of which two models were chosen; take {' or '.join(chosen)}")
    if not path.is_file():
        raise UserError(f"{record}: has no {name}: it is no record of a linear model of a table")
    if path.stat().st_size > LARGEST_FILE:
        raise UserError(f"{path}: is larger than any model")
    return path.read_bytes()
