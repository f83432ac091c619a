"""Losses of held-out rows for losses that are not sums over rows, such as that of Cox's model.

The loss of held-out rows is the difference between the client's loss with them and without them (Verweij and van
Houwelingen, 1993): held-out rows are compared with all rows at risk, not only with the few that are held out as well.
"""

from __future__ import annotations

import numpy as np

from fco_cli.problem.data import ClientData, Rows, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Model
from fco_cli.problem.risk import DataRisk


def joined(first: ClientData, second: ClientData) -> ClientData:
    """Return the rows of one client from two parts, without row weights."""
    if isinstance(first.x, SparseRows):
        x: Rows = _joined_entries(first.x, second.x)
    else:
        x = np.concatenate([first.x, second.x])
    return ClientData(x, np.concatenate([first.y, second.y]), np.array([0, x.shape[0]], np.int64))


def _joined_entries(*parts: SparseRows) -> SparseRows:
    """Return the rows of several parts; a part may be a slice of rows with entries of others."""
    used = [slice(part.starts[0], part.starts[-1]) for part in parts]
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    values, columns = (
        np.concatenate([entries[own] for entries, own in zip(stored, used, strict=True)])
        for stored in ([part.values for part in parts], [part.columns for part in parts])
    )
    return SparseRows(values, columns, np.append(0, np.cumsum(sizes)).astype(np.int64), parts[0].features)


def difference_losses(
    training: ClientData | None, held_out: ClientData, weight: float, model: Model, loss: Loss, w: Array
) -> Array:
    """Return `weight` times the losses [J] per held-out row of one client; without training rows, their own losses."""
    if training is None:
        return np.maximum(DataRisk(held_out, np.array([weight]), model, loss)(w, gradient=False).value, 0)
    values = []
    for data in (joined(training, held_out), training):
        share = weight * len(data.y) / len(held_out.y)
        values.append(DataRisk(data, np.array([share]), model, loss)(w, gradient=False).value)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values[0]), np.maximum(values[0] - values[1], 0), np.inf)
