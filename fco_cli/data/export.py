"""Export of a fitted linear model: a table of its weights, NumPy arrays and JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fco_cli.csv_writer import as_csv
from fco_cli.data.preparation import Preparation
from fco_cli.files import write_atomically
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss


@dataclass(frozen=True)
class LinearModel:
    """Description of a fitted linear model: loss, classes, preparation, training clients and feature names."""

    loss: Loss
    classes: list[str] | None
    preparation: Preparation | None  # None: sparse rows, which are not prepared
    clients: list[str] = field(default_factory=list)  # training clients
    features: Sequence[str] | None = None  # names of sparse columns, if they have names

    def write(
        self, folder: Path, weights: Array, bias: Array, site_bias: Array | None = None, shares: Array | None = None
    ) -> None:
        """Write the model, given the weights [C, D] and bias [C] for prepared features, to these files:

        model.csv           non-zero weights, largest first: for standardized features, and per unit of the feature
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
        intercept = bias - (coef * mean).sum(axis=1)
        if site_bias is not None and shares is not None:
            rows = zip(self.clients, intercept[0] + site_bias, strict=True)
            write_atomically(folder / "site_intercepts.csv", as_csv(["client", "intercept"], rows, ".17g").encode())
            intercept = intercept + shares @ site_bias
        write_atomically(folder / "model.csv", self._table(names, weights, coef))
        arrays = io.BytesIO()
        np.savez(arrays, allow_pickle=False, coef=coef, intercept=intercept, mean=mean, scale=scale)
        write_atomically(folder / "linear_model.npz", arrays.getvalue())
        loss = {"loss": self.loss.name, "link": self.loss.link}
        plain = {**loss, "features": names, "classes": self.classes, "sparse": preparation is None}
        write_atomically(folder / "linear_model.json", (json.dumps(plain, indent=1) + "\n").encode())
        if preparation is not None:
            write_atomically(folder / "preparation.json", preparation.as_json().encode())

    def _table(self, names: Sequence[str] | None, weights: Array, coef: Array) -> bytes:
        is_single = len(weights) == 1
        rows = []
        flat = np.abs(weights).ravel()
        for index in np.argsort(-flat, kind="stable")[: np.count_nonzero(flat)]:
            label, feature = np.unravel_index(index, weights.shape)
            name = [] if is_single else [label if self.classes is None else self.classes[label]]
            column = f"x{feature}" if names is None else names[feature]
            rows.append([column, *name, weights[label, feature], coef[label, feature]])
        return as_csv(["feature", *([] if is_single else ["class"]), "weight", "weight_per_unit"], rows).encode()
