"""Base classes of regularizers and constraints.

A regularizer defines kernels on one flat vector: its value, its proximal operator and, where they exist, a subgradient
and a linear minimization oracle. A kernel receives one regularized block of one job: the vector `w` or `z`, the
parameters `psi` as named fields of the dataclass (`psi.strength`), and `block`, a BlockInfo. mirror.py contains the
loops over jobs and blocks. A constraint is a regularizer whose prox ignores t.

A prox must preserve divergence: if z has a NaN or infinite entry, the result must not be finite, even where the
projection is (infinity projects onto a corner of a box). The engine detects diverged runs by their non-finite values.
Kernels that would lose them add `0 * z[i]`, which is 0 for finite z[i] and NaN otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fco_cli.errors import UserError, did_you_mean, require
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.layout import Array, Layout, Numbers, numbers_of
from fco_cli.problem.registry import Registry

MAX_LISTED = 10  # feature names in an error message


class BlockInfo(NamedTuple):
    """Description of one parameter block for a kernel: the piece of psi, the shape, one number per weight."""

    piece: int  # index of the piece of psi; 0 unless psi is blockwise
    rows: int
    columns: int
    per_weight: Array  # [rows * columns], result of `Regularizer.coordinate_numbers`, in the precision of the weights


@dataclass(kw_only=True)
class Regularizer:
    """Regularizer psi; subclasses add its parameters as fields, class attributes describe its properties."""

    name: str
    value: ClassVar[Kernel]  # value(w, psi, block) -> psi(w)
    prox: ClassVar[Kernel]  # prox(z, t, psi, block, out): out = argmin_w t psi(w) + |w - z|^2 / 2, t >= 0
    subgradient: ClassVar[Kernel | None] = None  # subgradient(w, psi, block, out), of a convex penalty
    lmo: ClassVar[Kernel | None] = None  # lmo(g, psi, block, out): out = argmin_w <g, w>, of a bounded convex set
    constraint: ClassVar[bool] = False
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False  # coordinate-separable: psi is a sum of functions of one weight each
    dominates_two_norm: ClassVar[bool] = False  # psi(w) >= strength |w|_2; with factors, of the scaled w
    bounds_two_norm: ClassVar[bool] = False  # |w|_2 <= radius wherever psi is finite

    def __init_subclass__(cls, **options: Any) -> None:
        """Remove an inherited `scalar_form` from a class with another prox."""
        super().__init_subclass__(**options)
        if "prox" in cls.__dict__ and "scalar_form" not in cls.__dict__:
            cls.scalar_form = Regularizer.scalar_form  # type: ignore[method-assign]

    @property
    def numbers(self) -> Numbers:
        """Parameters that the kernels receive as `psi`, as a record array [1]."""
        return numbers_of(self)

    @property
    def kind(self) -> str:
        """Key of everything except the parameters; runs in one stack must have equal keys."""
        return self.name

    def table(self, layout: Layout) -> Array:
        """Return one row per block for the kernels: start, stop, rows, columns, regularized, piece."""
        return np.column_stack([layout.table, [self.piece_index(block.name) for block in layout.blocks]])

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        """Return one number per weight [P] for the kernels, such as its penalty factor or group; ones by default.

        `features` are the feature names of a linear model, or None.
        """
        return np.ones(layout.size)

    def curvature(self, numbers: Numbers, per_weight: Array) -> Array:
        """Return the strong convexity of psi along each weight [P].

        `numbers` [1] are the parameters, `per_weight` is the result of `coordinate_numbers`.
        """
        return np.zeros(len(per_weight))

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array | None:
        """Return a, b, lower and upper [4, J, n] with psi(w) = sum_i a_i |w_i| + b_i w_i^2 / 2 on lower <= w <= upper.

        `numbers` [J] are the parameters, `per_weight` [n] the `coordinate_numbers` of weights of the block `name`. None
        if psi does not have this form.
        """
        return None

    def block_form(self, numbers: Numbers, per_weight: Array) -> tuple[Array, Array] | None:
        """Return labels [n] and factors [G] with psi(w) = sum_g factors[g] |w_g|_2; label g marks the weights w_g.

        `numbers` [1] are the parameters, `per_weight` [n] the `coordinate_numbers` of the regularized weights. None if
        psi does not have this form.
        """
        return None

    def piece_index(self, name: str) -> int:
        """Return the index of the piece of psi that acts on the block `name`."""
        return 0

    def check_layout(self, layout: Layout) -> None:
        """Raise UserError if this regularizer does not support the model's layout."""
        for block in layout.blocks:
            if block.regularized:
                self.check(block.shape)

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise UserError if this regularizer does not support a block of this shape."""


@dataclass(kw_only=True)
class Constraint(Regularizer):
    """Indicator function of a set: psi is 0 inside and infinite outside; its prox is the projection."""

    constraint: ClassVar[bool] = True

    @staticmethod
    @kernel
    def value(w, psi, block):
        return 0.0


@dataclass(kw_only=True)
class Ball(Constraint):
    """Norm ball of the given radius."""

    radius: float  # radius of the ball, at least 0

    def __post_init__(self) -> None:
        positive("radius", self.radius)


@kernel
def absolute_sum(w):
    """Return the l1 norm of w."""
    total = 0.0
    for i in range(w.shape[0]):
        total += abs(w[i])
    return total


@kernel
def scale(z, factor, out):
    """Write factor * z to out."""
    for i in range(z.shape[0]):
        out[i] = factor * z[i]


def stack_scalar_form(a: Array, b: Array, lower: Array | float = -np.inf, upper: Array | float = np.inf) -> Array:
    """Return the arrays of `Regularizer.scalar_form`, each broadcast to the shape [J, n] of `a`."""
    return np.stack([a, *(np.broadcast_to(one, a.shape) for one in (b, lower, upper))])


def non_negative(key: str, value: float) -> None:
    """Raise UserError unless the parameter is finite and >= 0."""
    require(np.isfinite(value) and value >= 0, f"regularizer.{key}", value, "a number >= 0")


def positive(key: str, value: float) -> None:
    """Raise UserError unless the parameter is finite and > 0."""
    require(np.isfinite(value) and value > 0, f"regularizer.{key}", value, "a number > 0")


def expand_by_feature(
    key: str, given: Mapping[str, float], layout: Layout, features: Sequence[str] | None, other: float
) -> Array:
    """Return one number per weight [P]: that of its feature, or `other` if `given` has none; equal for all classes.

    A categorical column that was expanded to several features, such as `color=red` and `color=blue`, is given either by
    its column name, `color`, or feature by feature.
    """
    numbers = np.full(layout.size, other)
    if not given:
        return numbers
    if "weights" not in layout.slices:
        raise UserError(f"{key}: needs a linear model; other models have no weight per feature")
    weights = layout.slices["weights"]
    bias = layout.slices.get("bias", slice(0, 1))  # one entry per class
    count = (weights.stop - weights.start) // (bias.stop - bias.start)
    names = list(features) if features is not None else [f"x{k}" for k in range(count)]
    columns = [name.partition("=")[0] for name in names]
    for name in given:
        if name not in names and name not in columns:
            listed = ", ".join(names[:MAX_LISTED]) + (", ..." if len(names) > MAX_LISTED else "")
            raise UserError(f"{key}.{name}: feature not found; features are {listed}{did_you_mean(name, names)}")
    row = np.array([given.get(name, given.get(column, other)) for name, column in zip(names, columns, strict=True)])
    numbers[weights] = np.resize(row, weights.stop - weights.start)
    return numbers


all_regularizers: Registry[Regularizer] = Registry("regularizer", Regularizer, __package__)
