"""Rows of tasks on tables: their weights and their preparation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fco_cli.data.format import FederatedData
from fco_cli.data.offsets import Offset
from fco_cli.data.preparation import Preparation
from fco_cli.errors import require
from fco_cli.problem.data import ClientData
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss


def with_weights(data: FederatedData, training: Array, loss: Loss, class_weight: str | None) -> FederatedData:
    """Return the data with sample weights times class weights, normalized to mean 1 over the training rows."""
    weights = data.weights
    if class_weight == "balanced":
        require(loss.classification, "task.class_weight", "balanced", f"null for the {loss.name} loss")
        classes, member = np.unique(data.y, return_inverse=True)
        counts = np.bincount(member[training], minlength=len(classes))  # a sum over the clients
        weights = (1.0 if weights is None else weights) * (1 / np.maximum(counts, 1))[member]
    if weights is None:
        return data
    mean = weights[training].mean()
    require(mean > 0, "weights", "0 for every training row", "above 0 for some training rows")
    return replace(data, weights=weights / mean)


def prepared_rows(
    data: FederatedData,
    rows: Array,
    training: Array,
    preparation: Preparation | None,
    dtype: str,
    offset: Offset | None,
) -> ClientData | None:
    """Return the prepared rows of a mask, with an offset as the last feature, or None if there are none."""
    if not rows.any():
        return None
    part = data.take(rows)
    x = part.x if preparation is None else preparation.apply(part.raw)
    x = x if offset is None else np.column_stack([x, offset.values[rows]])
    clients = replace(part, x=x).model_clients(dtype)
    return clients if rows is training else replace(clients, trained_as=data.training_index(training, rows))
