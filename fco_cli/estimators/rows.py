"""Conversion of X, y and groups to a task of clients with standardized rows, which leaves the objective unchanged.

With w~_i = s_i w_i the scores of x and of (x - m) / s differ by a constant, which the intercept absorbs. A separable
psi keeps its value if its factors are divided by s. Means and scales are weighted as F weights the rows. Scales are
powers of 2, so that dividing by them is exact. If psi is not separable, features keep their scales. Sparse rows are not
centered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from fco_cli.data.sparse import as_sparse_rows
from fco_cli.kernels.compiled import kernel
from fco_cli.problem.data import ClientData, SparseRows
from fco_cli.problem.layout import Array, Layout, Numbers, record
from fco_cli.problem.losses import Loss, Squared
from fco_cli.problem.models.linear import Linear, SparseLinear
from fco_cli.problem.problem import TaskData
from fco_cli.problem.regularizers import Regularizer
from fco_cli.problem.regularizers.base import stack_scalar_form
from fco_cli.problem.regularizers.nuclear import Nuclear
from fco_cli.problem.regularizers.penalties import (
    L1,
    ElasticNet,
    L2Squared,
    NoRegularizer,
    WeightedPenalty,
    soft_threshold_each,
    weighted_absolute_sum,
)
from fco_cli.tasks.base import Task

LARGEST_STRENGTH = 1e300  # in standardized units; every solution is the null model


@dataclass(kw_only=True)
class ScaledL1(L1):
    """l1 penalty of w~ / scales."""

    scales: Any

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        return super().coordinate_numbers(layout, features) / _scale_per_weight(self.scales, layout)


@dataclass(kw_only=True)
class ScaledL2Squared(L2Squared):
    """Squared l2 penalty of w~ / scales."""

    scales: Any

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        return super().coordinate_numbers(layout, features) / _scale_per_weight(self.scales, layout) ** 2


@dataclass(kw_only=True)
class ScaledElasticNet(ElasticNet):
    """Elastic net of w~ / scales; factors must be 0 or 1, so that they equal their squares."""

    scales: Any

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        return super().coordinate_numbers(layout, features) / _scale_per_weight(self.scales, layout)

    def curvature(self, numbers: Numbers, each: Array) -> Array:
        return numbers["l2_strength"][0] * each**2

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array:
        a, b = np.outer(numbers["strength"], per_weight), np.outer(numbers["l2_strength"], per_weight**2)
        return stack_scalar_form(a, b)

    @staticmethod
    @kernel
    def value(w, psi, block):
        total = 0.0
        for i in range(w.shape[0]):
            entry = np.float64(block.per_weight[i]) * w[i]
            total += entry * entry
        return psi.strength * weighted_absolute_sum(w, block.per_weight) + psi.l2_strength / 2 * total

    @staticmethod
    @kernel
    def prox(z, t, psi, block, out):
        soft_threshold_each(z, z.dtype.type(t * psi.strength), block.per_weight, out)
        for i in range(z.shape[0]):
            out[i] /= 1 + t * psi.l2_strength * block.per_weight[i] * block.per_weight[i]

    @staticmethod
    @kernel
    def subgradient(w, psi, block, out):
        for i in range(w.shape[0]):
            factor = block.per_weight[i]
            out[i] = factor * (psi.strength * np.sign(w[i]) + psi.l2_strength * factor * w[i])


@dataclass(kw_only=True)
class MixedElasticNet(ElasticNet):
    """Elastic net with l2_strength = l2_ratio * strength."""

    l2_ratio: float
    l2_strength: float = 0.0

    def __post_init__(self) -> None:
        self.l2_strength = float(self.l2_ratio) * float(self.strength)
        super().__post_init__()

    @property
    def numbers(self) -> Numbers:
        """The numbers of an elastic net: kernels are compiled once for both."""
        return record({"strength": float(self.strength), "l2_strength": self.l2_strength})


@dataclass(kw_only=True)
class ScaledMixedElasticNet(ScaledElasticNet, MixedElasticNet):
    """Mixed elastic net of w~ / scales."""


def _scale_per_weight(scales: Array, layout: Layout) -> Array:
    """Return the scale of every weight [P], 1 for biases."""
    numbers, weights = np.ones(layout.size), layout.slices["weights"]
    numbers[weights] = np.resize(scales, weights.stop - weights.start)
    return numbers


SCALED: dict[type[Regularizer], type[Regularizer]] = {
    L1: ScaledL1,
    L2Squared: ScaledL2Squared,
    ElasticNet: ScaledElasticNet,
    MixedElasticNet: ScaledMixedElasticNet,
}


@dataclass(frozen=True)
class Units:
    """Means and scales of the features [d] and of the labels."""

    means: Array
    scales: Array
    label_mean: float = 0.0
    label_scale: float = 1.0

    def regularizer(self, psi: Regularizer) -> Regularizer:
        """Return psi as a function of the standardized weights, divided by the squared label scale."""
        changes: dict[str, Any] = {}
        if isinstance(psi, L1 | ElasticNet | Nuclear):
            changes["strength"] = min(float(psi.strength) / self.label_scale, LARGEST_STRENGTH)
        if isinstance(psi, MixedElasticNet):  # l2_strength does not change
            changes["l2_ratio"] = psi.l2_ratio * self.label_scale
        kind = SCALED.get(type(psi))
        if kind is None or (self.scales == 1).all():
            return replace(psi, **changes)
        return kind(**{**vars(psi), **changes, "scales": self.scales})

    def to_data_units(self, models: Array) -> Array:
        """Return standardized models [J, P] in the units of the data."""
        outputs = models.shape[1] // (len(self.scales) + 1)
        weights = models[:, :-outputs].reshape(len(models), outputs, -1) / self.scales
        biases = models[:, -outputs:] - (weights * self.means).sum(axis=2)
        scaled = np.concatenate([weights.reshape(len(models), -1), biases], axis=1) * self.label_scale
        scaled[:, -outputs:] += self.label_mean
        return scaled


def standardize(data: TaskData, psi: Regularizer, weighting: str) -> tuple[TaskData, Units]:
    """Return the standardized data and their units."""
    row_weights, training = data.training.weights(weighting) / data.training.sizes, data.training
    weights = np.repeat(row_weights, training.sizes)
    if training.relative_weights is not None:
        weights = weights * training.relative_weights
    sparse, d = isinstance(training.x, SparseRows), training.x.shape[1]
    means, spreads = np.zeros(d), np.ones(d)
    if sparse:
        spreads = _sparse_spreads(training.x, np.repeat(weights, np.diff(training.x.starts)))
    else:
        for column in range(d):
            means[column], spreads[column] = _mean_and_spread(training.x[:, column], weights)
    units = Units(means, _powers_of_two(spreads) if _is_scalable(psi) else np.ones(d))
    if sparse:
        x = training.x._replace(values=training.x.values / units.scales[training.x.columns])
    else:
        x = (training.x - means) / units.scales
        x[:, spreads == 0] = 0.0
    y = training.y
    if isinstance(data.loss, Squared):
        mean, spread = _mean_and_spread(y, weights)
        scale = float(_powers_of_two(np.array([spread]))[0]) if _is_homogeneous(psi) else 1.0
        units = replace(units, label_mean=mean, label_scale=scale)
        y = (y - mean) / scale
    return replace(data, training=replace(training, x=x, y=y)), units


def _is_scalable(psi: Regularizer) -> bool:
    """Return True if psi can be rescaled to keep its value when features are scaled."""
    if isinstance(psi, ElasticNet) and any(factor not in (0, 1) for factor in psi.factors.values()):
        return False
    return type(psi) is NoRegularizer or type(psi) in SCALED


def _is_homogeneous(psi: Regularizer) -> bool:
    """Return True if psi can be rescaled to keep its value, relative to the squared labels, when labels are scaled."""
    return isinstance(psi, NoRegularizer | WeightedPenalty | Nuclear)


def _mean_and_spread(values: Array, weights: Array) -> tuple[float, float]:
    """Return the weighted mean and standard deviation; the latter is 0 if all values are equal up to rounding."""
    size = float(np.abs(values).max())
    if size == 0:
        return 0.0, 0.0
    shares = values / size  # so that squares neither overflow nor underflow
    mean = float(weights @ shares / weights.sum())
    spread = float(np.sqrt(weights @ (shares - mean) ** 2 / weights.sum()))
    is_constant = np.ptp(values) == 0 or spread <= 4 * np.finfo(float).eps * abs(mean)
    return mean * size, 0.0 if is_constant else spread * size


def _sparse_spreads(x: SparseRows, weights: Array) -> Array:
    """Return the weighted root mean square of every column [d], 0 for empty columns."""
    size = np.zeros(x.features)
    np.maximum.at(size, x.columns, np.abs(x.values))
    shares = x.values / np.where(size > 0, size, 1.0)[x.columns]
    return size * np.sqrt(np.bincount(x.columns, weights * shares**2, x.features))


def _powers_of_two(spreads: Array) -> Array:
    """Return the nearest power of 2 to each spread, 1 for 0; neither it nor its inverse overflows."""
    exponents = np.clip(np.round(np.log2(np.where(spreads > 0, spreads, 1.0))), -1000, 1000)
    return np.ldexp(1.0, exponents.astype(int))


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
