"""Conversion of X, y and groups to a task with clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from fco_cli.data.sparse import as_sparse_rows
from fco_cli.estimators.scaling import Units, standardize
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.tasks.base import Task


@dataclass(kw_only=True)
class InMemory(Task):
    """Task whose data are in memory."""

    task_data: TaskData  # standardized
    order: Array  # [N], indices into the rows of X, sorted by client
    n_rows: int  # of X, including those of weight 0
    units: Units  # of `task_data`

    def build(self, seed: int, dtype: str) -> TaskData:
        return self.task_data


def make_task(
    x: Any, y: Array, groups: Array, weights: Array | None, loss: Loss, outputs: int, shape: tuple[int, int] | None,
    features: tuple[str, ...] | None, psi: Regularizer, weighting: str,
) -> InMemory:  # fmt: skip
    """Return a task whose clients are the groups, sorted by name, with standardized rows.

    Rows of weight 0 are dropped.
    """
    kept = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    names, member, sizes = np.unique(groups[kept], return_inverse=True, return_counts=True)
    order = kept[np.argsort(member, kind="stable")]
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    rows = _as_rows(x[order]) if issparse(x) else np.ascontiguousarray(x[order], dtype=float)
    data = ClientData(rows, y[order].astype(float), offsets, None if weights is None else weights[order].astype(float))
    kind = SparseLinear if issparse(x) else Linear
    task_data = TaskData(
        data, kind(x.shape[1], outputs, shape), loss, features=features, clients=[str(name) for name in names]
    )
    task_data, units = standardize(task_data, psi, weighting)
    return InMemory(
        name="in_memory", strength=0.0, radius=1.0, task_data=task_data, order=order, n_rows=len(y), units=units
    )


def _as_rows(x: Any) -> SparseRows:
    """Return a sparse matrix as rows with sorted column indices."""
    stored = csr_array(x, dtype=float)
    stored.sort_indices()
    return as_sparse_rows(stored, stored.data)
