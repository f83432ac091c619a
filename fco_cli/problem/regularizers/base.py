"""What a regularizer is: three kernels on one vector, and the numbers they depend on.

The kernels see one regularized block of one job: `w` or `z` flat, `psi` the regularizer's numbers by the names of its
dataclass fields (`psi.strength`) and `block`, a OneBlock. The stack and the blocks are looped over elsewhere
(mirror.py), so a new regularizer is a few lines about one vector. A constraint is a regularizer whose prox ignores t.

A prox keeps divergence visible: of a z that is not finite it makes no finite vector, even where the mathematics would
(the projection of infinity onto a box is a corner of it), for a run that has blown up is recognized by that. Where
nothing else does it, `+ 0 * z[i]` does: 0 for a number, NaN for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fco_cli.errors import require
from fco_cli.kernels.compiled import Kernel, kernel
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.numbers import Numbers, numbers_of
from fco_cli.problem.registry import members


class OneBlock(NamedTuple):
    """What a kernel is told about its block: which piece of psi acts on it, its shape, a number for every weight."""

    piece: int  # 0 unless psi has pieces, see blockwise.py
    rows: int
    columns: int
    each: Array  # [rows * columns], in the precision of the weights: what `Regularizer.each` says of them


@dataclass(kw_only=True)
class Regularizer:
    """psi, with its numbers in the fields that subclasses add; the class attributes describe its kind."""

    name: str
    value: ClassVar[Kernel]  # value(w, psi, block) -> psi(w)
    prox: ClassVar[Kernel]  # prox(z, t, psi, block, out): out = argmin_w t psi(w) + |w - z|^2 / 2, for t >= 0
    subgradient: ClassVar[Kernel | None] = None  # subgradient(w, psi, block, out), where one exists
    lmo: ClassVar[Kernel | None] = None  # lmo(g, psi, block, out): out = argmin of <g, w>, where psi is a bounded set
    constraint: ClassVar[bool] = False
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False  # a sum over the weights, one by one: prox then acts on each by itself
    dominates_two_norm: ClassVar[bool] = False  # psi(w) >= strength |w|_2, with factors: of the scaled w
    bounds_two_norm: ClassVar[bool] = False  # |w|_2 <= radius where psi is finite

    @property
    def numbers(self) -> Numbers:
        """What the kernels receive as `psi`: [1]."""
        return numbers_of(self)

    @property
    def kind(self) -> str:
        """What must be the same for two runs to share a stack: all but the numbers."""
        return self.name

    def table(self, layout: Layout) -> Array:
        """For the kernels, a row per block: start, stop, rows, columns, regularized, piece."""
        return np.column_stack([layout.table, [self.piece_of(block.name) for block in layout.blocks]])

    def each(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        """What the kernels must know of every weight [P], such as its factor or its group; ones if nothing.

        `features` are the names of a linear model's features, where they have any.
        """
        return np.ones(layout.size)

    def curvature(self, numbers: Numbers, each: Array) -> Array:
        """Return how strongly convex psi is along every weight [P], for its numbers [1] and what `each` returns."""
        return np.zeros(len(each))

    def piece_of(self, name: str) -> int:
        """The index of the piece of psi that acts on the block `name`."""
        return 0

    def check_layout(self, layout: Layout) -> None:
        """Refuse a model that this regularizer cannot act on."""
        for block in layout.blocks:
            if block.regularized:
                self.check(block.shape)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse a block that this regularizer cannot act on."""


@dataclass(kw_only=True)
class Constraint(Regularizer):
    """psi is 0 in a set and infinite outside; its prox, the projection, keeps iterates inside."""

    constraint: ClassVar[bool] = True

    @staticmethod
    @kernel
    def value(w, psi, block):
        return 0.0


@dataclass(kw_only=True)
class Ball(Constraint):
    """A norm is at most `radius`."""

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)


@kernel
def absolute_sum(w):
    total = 0.0
    for i in range(w.shape[0]):
        total += abs(w[i])
    return total


@kernel
def scale(z, factor, out):
    """out = factor * z."""
    for i in range(z.shape[0]):
        out[i] = factor * z[i]


def non_negative(key: str, value: float) -> None:
    require(np.isfinite(value) and value >= 0, f"regularizer.{key}", value, "a number >= 0")


def positive(key: str, value: float) -> None:
    require(np.isfinite(value) and value > 0, f"regularizer.{key}", value, "a number > 0")


def all_regularizers() -> dict[str, type[Regularizer]]:
    """Every regularizer in this folder by name; a new file needs no list to be added to."""
    return members(Regularizer, __package__)
