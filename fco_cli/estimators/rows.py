"""Rows of X as clients' rows, and a task that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from fco_cli.data.sparse import as_sparse_rows
from fco_cli.estimators.scaling import Units, standardized
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array
from fco_cli.problem.losses import Loss
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.tasks.base import Task


@dataclass(kw_only=True)
class InMemory(Task):
    """Data that are there already."""

    made: TaskData
    order: Array  # [N], the rows of X in the order of the clients
    given: int  # how many rows X has, those of weight 0 too
    units: Units  # in which `made` has its rows

    def build(self, seed: int, dtype: str) -> TaskData:
        return self.made


def task_of(
    x: Any, y: Array, groups: Array, weights: Array | None, loss: Loss, outputs: int, shape: tuple[int, int] | None,
    features: tuple[str, ...] | None, psi: Regularizer, weighting: str,
) -> InMemory:  # fmt: skip
    """Return the standardized rows of every group, one group after another in the order of their names.

    Rows of weight 0 are left out.
    """
    some = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    names, member, sizes = np.unique(groups[some], return_inverse=True, return_counts=True)
    order = some[np.argsort(member, kind="stable")]
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    rows = _sparse(x[order]) if issparse(x) else np.ascontiguousarray(x[order], dtype=float)
    data = ClientData(rows, y[order].astype(float), offsets, None if weights is None else weights[order].astype(float))
    kind = SparseLinear if issparse(x) else Linear
    made = TaskData(
        data, kind(x.shape[1], outputs, shape), loss, features=features, clients=[str(name) for name in names]
    )
    made, units = standardized(made, psi, weighting)
    return InMemory(name="in_memory", strength=0.0, radius=1.0, made=made, order=order, given=len(y), units=units)


def _sparse(x: Any) -> SparseRows:
    stored = csr_array(x, dtype=float)
    stored.sort_indices()
    return as_sparse_rows(stored, stored.data)
