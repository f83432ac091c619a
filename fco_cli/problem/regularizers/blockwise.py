"""A sum of separable pieces: every block of parameters has its own regularizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fco_cli.errors import UserError, require
from fco_cli.kernels.compiled import Kernel, kernel, specialize
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.numbers import Numbers, record
from fco_cli.problem.regularizers.base import OneBlock, Regularizer, all_regularizers

# The numbers and the kernels are chained alike: the first piece, and the chain of the others; the last is itself.


def first(*arguments):  # bound by `specialize` to the kernel of the first piece, `others` to the chain of the rest
    raise NotImplementedError


def others(*arguments):
    raise NotImplementedError


@kernel
def among_others(block):
    """The same block, its piece counted from the second piece."""
    return OneBlock(block.piece - 1, block.rows, block.columns, block.each)


@kernel
def value_of_one(w, psi, block):
    return first(w, psi.first, block) if block.piece == 0 else others(w, psi.others, among_others(block))


@kernel
def prox_of_one(z, t, psi, block, out):
    if block.piece == 0:
        first(z, t, psi.first, block, out)
    else:
        others(z, t, psi.others, among_others(block), out)


@kernel
def vector_of_one(w, psi, block, out):
    """A subgradient, or a point of a set."""
    if block.piece == 0:
        first(w, psi.first, block, out)
    else:
        others(w, psi.others, among_others(block), out)


def choice(template: Kernel, kernels: list[Kernel]) -> Kernel:
    """The kernel that calls the one of `kernels` that `block.piece` names."""
    chain = kernels[-1]
    for one in reversed(kernels[:-1]):
        chain = specialize(template, first=one, others=chain)
    return chain


@dataclass(kw_only=True)
class Blockwise(Regularizer):
    """psi(w) = sum over blocks b of psi_b(w_b).

    `blocks` names for every regularized block its regularizer and that one's numbers, for example
    {weights: {name: l1, strength: 0.1}}.
    """

    blocks: dict[str, Any]
    name: str = "blockwise"

    def __post_init__(self) -> None:
        require(len(self.blocks) > 0, "regularizer.blocks", self.blocks, "block: {name: ..., ...} for every block")
        self.convex = all(one.convex for one in self.pieces.values())  # type: ignore[misc]
        self.constraint = all(one.constraint for one in self.pieces.values())  # type: ignore[misc]
        self.separable = all(one.separable for one in self.pieces.values())  # type: ignore[misc]

    @cached_property
    def pieces(self) -> dict[str, Regularizer]:
        return {block: _regularizer(block, options) for block, options in self.blocks.items()}

    @property
    def kind(self) -> str:
        return f"{self.name}({', '.join(f'{block}={one.kind}' for block, one in self.pieces.items())})"

    @property
    def numbers(self) -> Numbers:
        *rest, chain = (one.numbers for one in self.pieces.values())
        for one in reversed(rest):
            chain = record({"first": one, "others": chain})
        return chain

    def bound_classes(self) -> list[type]:
        """Return the classes that the configuration names."""
        return [type(one) for one in self.pieces.values()]

    def piece_of(self, name: str) -> int:
        return list(self.pieces).index(name) if name in self.pieces else 0  # 0 for a bias, which has no psi

    def each(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        numbers = super().each(layout, features)
        for name, one in self.pieces.items():
            numbers[layout.slices[name]] = one.each(layout, features)[layout.slices[name]]
        return numbers

    def check_layout(self, layout: Layout) -> None:
        regularized = {block.name: block for block in layout.blocks if block.regularized}
        complete = set(self.pieces) == set(regularized)
        require(complete, "regularizer.blocks", ", ".join(self.pieces), f"all of {', '.join(regularized)}, no others")
        for name, one in self.pieces.items():
            one.check(regularized[name].shape)

    @property
    def value(self) -> Kernel:  # type: ignore[override]
        return choice(value_of_one, [one.value for one in self.pieces.values()])

    @property
    def prox(self) -> Kernel:  # type: ignore[override]
        return choice(prox_of_one, [one.prox for one in self.pieces.values()])

    @property
    def subgradient(self) -> Kernel | None:  # type: ignore[override]
        kernels = [one.subgradient for one in self.pieces.values() if one.subgradient is not None]
        return choice(vector_of_one, kernels) if len(kernels) == len(self.pieces) else None

    @property
    def lmo(self) -> Kernel | None:  # type: ignore[override]
        kernels = [one.lmo for one in self.pieces.values() if one.lmo is not None]
        return choice(vector_of_one, kernels) if len(kernels) == len(self.pieces) else None


def _regularizer(block: str, options: dict[str, Any]) -> Regularizer:
    numbers = dict(options)
    kinds = {name: kind for name, kind in all_regularizers().items() if kind is not Blockwise}
    name = numbers.pop("name", None)
    require(name in kinds, f"regularizer.blocks.{block}.name", name, "one of " + ", ".join(kinds))
    try:
        return kinds[name](**numbers)
    except TypeError as problem:
        raise UserError(f"regularizer.blocks.{block}: {problem}") from None
