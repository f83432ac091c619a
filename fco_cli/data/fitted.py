"""Fitted linear models: export to a record as a table, NumPy arrays and JSON, and prediction from these files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from fco_cli.data.offsets import offsets_of
from fco_cli.data.preparation import Preparation
from fco_cli.data.readers import read_features, read_sparse_rows
from fco_cli.errors import UserError
from fco_cli.files import as_csv, write_atomically
from fco_cli.problem.data import Rows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss, all_losses
from fco_cli.problem.losses.base import LINKS
from fco_cli.typed_files import BadRecord, read_arrays, read_bounded, read_json, read_pairs

LARGEST_FILE = 1 << 30  # bytes
INTERCEPT = "(intercept)"  # in model.csv
FILES = ("linear_model.json", "linear_model.npz")


@dataclass(frozen=True)
class LinearModel:
    """Description of a fitted linear model: loss, classes, preparation, training clients and feature names."""

    loss: Loss
    classes: list[str] | None
    preparation: Preparation | None  # None: sparse rows, which are not prepared
    clients: list[str] = field(default_factory=list)  # training clients
    features: Sequence[str] | None = None  # names of sparse columns, if they have names
    shift: float = 0.0  # added to the intercept (data/offsets.py)

    def write(
        self, folder: Path, weights: Array, bias: Array, site_bias: Array | None = None, shares: Array | None = None
    ) -> None:
        """Write the model, given the weights [C, D] and bias [C] for prepared features, to these files:

        model.csv           non-zero weights, largest first: for standardized features, and per unit of the feature;
                            then the intercepts, in the same units
        linear_model.npz    coef [C, D] and intercept [C] for features in original units; mean and scale
        linear_model.json   loss, its link, feature names and class names
        preparation.json    the preparation of a table (data/preparation.py); not written for sparse rows
        site_intercepts.csv intercepts of the clients in original units; written only if `site_bias` is given

        `site_bias` [M] are additional biases of the clients; their mean, weighted by `shares` [M], is the intercept for
        other clients.
        """
        preparation, names = self.preparation, self.features
        mean, scale = np.zeros(weights.shape[1]), np.ones(weights.shape[1])
        if preparation is not None:
            names = preparation.features
            mean, scale = np.array(preparation.mean or mean), np.array(preparation.scale or scale)
        coef = weights / scale
        intercept = bias - (coef * mean).sum(axis=1) + self.shift
        if site_bias is not None and shares is not None:
            rows = zip(self.clients, intercept[0] + site_bias, strict=True)
            write_atomically(folder / "site_intercepts.csv", as_csv(["client", "intercept"], rows, ".17g").encode())
            intercept = intercept + shares @ site_bias
        biases = np.array([bias + (0 if shares is None or site_bias is None else shares @ site_bias), intercept])
        write_atomically(folder / "model.csv", self._table(names, weights, coef, biases))
        arrays = io.BytesIO()
        np.savez(arrays, allow_pickle=False, coef=coef, intercept=intercept, mean=mean, scale=scale)
        write_atomically(folder / "linear_model.npz", arrays.getvalue())
        loss = {"loss": self.loss.name, "link": self.loss.link}
        plain = {**loss, "features": names, "classes": self.classes, "sparse": preparation is None}
        write_atomically(folder / "linear_model.json", (json.dumps(plain, indent=1) + "\n").encode())
        if preparation is not None:
            write_atomically(folder / "preparation.json", preparation.as_json().encode())

    def _table(self, names: Sequence[str] | None, weights: Array, coef: Array, biases: Array) -> bytes:
        """Return model.csv; `biases` [2, C] are the intercepts for standardized features and in original units."""
        is_single = len(weights) == 1
        labels = [
            [] if is_single else [str(k) if self.classes is None else self.classes[k]] for k in range(len(weights))
        ]
        rows = []
        flat = np.abs(weights).ravel()
        for index in np.argsort(-flat, kind="stable")[: np.count_nonzero(flat)]:
            label, feature = np.unravel_index(index, weights.shape)
            column = f"x{feature}" if names is None else names[feature]
            rows.append([column, *labels[label], weights[label, feature], coef[label, feature]])
        if self.loss.client_loss is None:  # the Cox loss has no intercept
            rows += [[INTERCEPT, *label, *biases[:, k]] for k, label in enumerate(labels)]
        return as_csv(["feature", *([] if is_single else ["class"]), "weight", "weight_per_unit"], rows).encode()


class LinearModelNames(msgspec.Struct):
    """Schema of linear_model.json."""

    loss: str
    classes: list[str] | None
    sparse: bool = False
    link: str = ""  # absent from records of earlier versions: that of the loss

    def predict(self) -> tuple[str, Callable[[Array], Array]]:
        """Return the link and its map from scores [N, C] to predictions; that of a plug-in's link is in its loss."""
        known = all_losses().get(self.loss)
        link = self.link or (known.link if known is not None else "")
        if link in LINKS:
            return link, LINKS[link]
        if known is None:
            raise BadRecord(f"linear_model.json: the loss {self.loss} is unknown; FCO_PLUGINS=... loads a plug-in")
        return link, known().predict

    def check_outputs(self, outputs: int, link: str) -> None:
        """Raise BadRecord if the number of outputs is invalid for the link or the classes."""
        classes = {"softmax": outputs, "logit": 2}.get(link)
        if outputs < 1 or (outputs > 1 and link != "softmax"):
            raise BadRecord(f"linear_model.npz: {outputs} outputs do not fit the {self.loss} loss")
        if classes is not None and self.classes is not None and len(self.classes) != classes:
            raise BadRecord(f"linear_model.json: {len(self.classes)} classes do not fit the model, which has {classes}")


@dataclass(frozen=True)
class FittedModel:
    """Linear model for encoded features in original units or, without a preparation, for sparse rows."""

    link: str
    predict: Callable[[Array], Array]  # predictions [N, C] of scores [N, C]
    classes: list[str] | None
    preparation: Preparation | None
    coef: Array  # [C, D]
    intercept: Array  # [C]

    @classmethod
    def read(cls, record: Path) -> FittedModel:
        """Return the model of a record; raise UserError if the record has no valid model."""
        _require_files(record)
        try:
            names = read_json(record / "linear_model.json", LinearModelNames, LARGEST_FILE)
            arrays = read_arrays(record / "linear_model.npz", LARGEST_FILE)
            preparation = None
            if not names.sparse:
                content = read_bounded(record / "preparation.json", LARGEST_FILE)
                preparation = Preparation.of_json(content, str(record))
            coef, intercept = arrays.get("coef"), arrays.get("intercept")
            if coef is None or intercept is None:
                raise BadRecord("linear_model.npz: must have the arrays coef and intercept")
            features = coef.shape[-1:] if preparation is None else (len(preparation.features),)
            if intercept.ndim != 1 or coef.shape != (len(intercept), *features):
                raise BadRecord("linear_model.npz: shapes of coef, intercept and features are inconsistent")
            if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
                raise BadRecord("linear_model.npz: coef and intercept must be finite")
            link, predict = names.predict()
            names.check_outputs(len(intercept), link)
        except BadRecord as problem:
            raise UserError(f"{record}: {problem}") from problem
        return cls(link, predict, names.classes, preparation, coef, intercept)

    def scores_of(self, path: Path) -> Array:
        """Return the scores [N, C] of the rows of a new file, with their offsets."""
        if self.preparation is None:
            return self.scores(read_sparse_rows(path, self.coef.shape[1]))
        table = read_features(path, self.preparation.table)
        scores = self.scores(self.preparation.encode(table))
        offset = self.preparation.offset
        return scores if offset is None else scores + offsets_of(table, offset)[:, None]

    def scores(self, x: Rows) -> Array:
        """Return the scores [N, C] of rows; scores that overflow become infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return x @ self.coef.T + self.intercept

    def columns(self, scores: Array) -> dict[str, Array]:
        """Return the output columns of a prediction, given the scores [N, C]."""
        predictions = self.predict(scores)
        if self.link == "logit":
            positive = predictions[:, 0]
            names = self._classes(2)
            return {"prediction": np.array(names, object)[(positive > 0.5).astype(int)],
                    f"probability of {names[1]}": positive.astype(object)}  # fmt: skip
        if self.link == "softmax":
            names, shares = self._classes(scores.shape[1]), predictions
            prediction = {"prediction": np.array(names, object)[shares.argmax(axis=1)]}
            return prediction | {f"probability of {name}": shares[:, c].astype(object) for c, name in enumerate(names)}
        return {"log hazard ratio" if self.link == "log_hazard" else "prediction": predictions[:, 0].astype(object)}

    def _classes(self, count: int) -> list[str]:
        return [str(k) for k in range(count)] if self.classes is None else self.classes


def read_site_intercepts(record: Path) -> dict[str, float]:
    """Return the intercepts of the training clients in a record; empty if they have no intercepts of their own."""
    path = record / "site_intercepts.csv"
    if not path.exists():
        return {}
    pairs = read_pairs(path, "site_intercepts.csv", "client,intercept")
    try:
        return {client: float(text) for client, text in pairs.items()}
    except ValueError as problem:
        raise UserError(f"{path}: intercepts must be numbers: {problem}") from problem


def _require_files(record: Path) -> None:
    """Raise UserError if the folder lacks the files of a linear model."""
    if chosen := [str(record / one) for one in ("min", "1se") if (record / one / FILES[0]).is_file()]:
        raise UserError(f"{record}: is a regularization path with two selected models; give {' or '.join(chosen)}")
    if missing := [name for name in FILES if not (record / name).exists()]:
        raise UserError(f"{record}: {missing[0]} not found: not a record of a linear model of a table")
