"""Rows and model of a few weights, for models whose other weights are 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.models.linear import Linear, Model


def can_be_narrow(data: ClientData, model: Model) -> bool:
    """Return True for linear models of dense rows with one output."""
    return isinstance(model, Linear) and model.outputs == 1 and not isinstance(data.x, SparseRows)


def narrow(data: ClientData, model: Model, columns: Array) -> tuple[ClientData, Linear]:
    """Return the rows and the model of the weights `columns` (sorted, the bias last)."""
    assert isinstance(model, Linear)
    assert columns[-1] == model.features
    features = columns[:-1]
    x = np.ascontiguousarray(data.x[:, features])
    return replace(data, x=x), replace(model, features=len(features), weights_shape=None)
