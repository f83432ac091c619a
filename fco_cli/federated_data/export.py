"""A fitted linear model for people and for other software: a table of its weights, plain arrays, plain JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fco_cli.federated_data.moments import Moments
from fco_cli.files import write_atomically
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class LinearModel:
    """What the numbers of a model mean."""

    loss: str
    features: list[str]
    classes: list[str] | None
    moments: Moments  # by which the features were standardized

    def write(self, folder: Path, weights: Array, bias: Array) -> None:
        """Three files from the weights [C, d] and bias [C] for standardized features.

        model.csv           the non-zero weights, largest first: as learnt, and per unit of the feature as given
        linear_model.npz    coef [C, d] and intercept [C] for features as given; mean and scale
        linear_model.json   the names
        """
        coef = weights / self.moments.scale
        intercept = bias - (coef * self.moments.mean).sum(axis=1)
        write_atomically(folder / "model.csv", self._table(weights, coef))
        arrays = io.BytesIO()
        mean, scale = self.moments.mean, self.moments.scale
        np.savez(arrays, allow_pickle=False, coef=coef, intercept=intercept, mean=mean, scale=scale)
        write_atomically(folder / "linear_model.npz", arrays.getvalue())
        names = {"loss": self.loss, "features": self.features, "classes": self.classes}
        write_atomically(folder / "linear_model.json", (json.dumps(names, indent=1) + "\n").encode())

    def _table(self, weights: Array, coef: Array) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        one = len(weights) == 1
        writer.writerow(["feature", *([] if one else ["class"]), "weight", "weight_per_unit"])
        flat = np.abs(weights).ravel()
        for place in np.argsort(-flat, kind="stable")[: np.count_nonzero(flat)]:
            label, feature = np.unravel_index(place, weights.shape)
            name = [] if one else [label if self.classes is None else _as_text(self.classes[label])]
            writer.writerow([_as_text(self.features[feature]), *name, weights[label, feature], coef[label, feature]])
        return text.getvalue().encode()


def _as_text(name: str) -> str:
    """A spreadsheet would compute a name that begins like a formula; after an apostrophe it is text."""
    return f"'{name}" if name.lstrip().startswith(("=", "+", "-", "@")) else name
