"""Blockwise regularizer: each parameter block has its own regularizer, called a piece.

Parameters and kernels of the pieces are chained in the same way: each link holds the `first` piece and the chain of the
`others`; the last link is the last piece itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from fco_cli.errors import UserError, require
from fco_cli.kernels.compiled import Kernel, declared, kernel, specialize
from fco_cli.problem.layout import Array, Layout, Numbers, record
from fco_cli.problem.regularizers.base import BlockInfo, Regularizer, all_regularizers


class Chain:
    """One link of the chain of pieces, for one of their kernels."""

    first: Kernel  # of the first piece
    others: Kernel  # of the chain of the other pieces


pieces: Chain = declared(Chain)


@kernel
def relative_to_others(block):
    """Return the block with its piece index counted from the second piece."""
    return BlockInfo(block.piece - 1, block.rows, block.columns, block.per_weight)


@kernel
def dispatch_value(w, psi, block):
    """Return the value of the block's piece."""
    if block.piece == 0:
        return pieces.first(w, psi.first, block)
    return pieces.others(w, psi.others, relative_to_others(block))


@kernel
def dispatch_prox(z, t, psi, block, out):
    """Apply the prox of the block's piece."""
    if block.piece == 0:
        pieces.first(z, t, psi.first, block, out)
    else:
        pieces.others(z, t, psi.others, relative_to_others(block), out)


@kernel
def dispatch_vector(w, psi, block, out):
    """Apply the subgradient or the linear minimization oracle of the block's piece."""
    if block.piece == 0:
        pieces.first(w, psi.first, block, out)
    else:
        pieces.others(w, psi.others, relative_to_others(block), out)


def dispatch_by_piece(template: Kernel, kernels: list[Kernel]) -> Kernel:
    """Return a kernel that calls the entry of `kernels` with the index `block.piece`."""
    chain = kernels[-1]
    for one in reversed(kernels[:-1]):
        chain = specialize(template, pieces={"first": one, "others": chain})
    return chain


@dataclass(kw_only=True)
class Blockwise(Regularizer):
    """Sum over blocks: psi(w) = sum_b psi_b(w_b).

    `blocks` maps each regularized block to the name and the parameters of its regularizer, for example
    {weights: {name: l1, strength: 0.1}}. A key may be a pattern, such as conv*; a block has the first key that matches.
    """

    blocks: Any  # name or pattern of a block to name and parameters of its regularizer; a typed mapping would keep the
    # keys of its default in addition to those that are given
    name: str = "blockwise"

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.blocks, dict) and len(self.blocks) > 0
        require(is_mapping, "regularizer.blocks", self.blocks, "a mapping of each block to {name: ..., ...}")
        self.convex = all(one.convex for one in self.pieces.values())  # type: ignore[misc]
        self.constraint = all(one.constraint for one in self.pieces.values())  # type: ignore[misc]
        self.separable = all(one.separable for one in self.pieces.values())  # type: ignore[misc]

    @cached_property
    def pieces(self) -> dict[str, Regularizer]:
        """Regularizers by block."""
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
        """Return the regularizer classes named in the configuration."""
        return [type(one) for one in self.pieces.values()]

    def piece_index(self, name: str) -> int:
        """Return the index of the first key that matches; 0 for a bias, which is not regularized."""
        return next((index for index, key in enumerate(self.pieces) if fnmatchcase(name, key)), 0)

    def scalar_form(self, numbers: Numbers, per_weight: Array, name: str) -> Array | None:
        index, last = self.piece_index(name), len(self.pieces) - 1
        for _ in range(index):
            numbers = numbers["others"]
        piece = list(self.pieces.values())[index]
        return piece.scalar_form(numbers if index == last else numbers["first"], per_weight, name)

    def coordinate_numbers(self, layout: Layout, features: Sequence[str] | None = None) -> Array:
        numbers, pieces = super().coordinate_numbers(layout, features), list(self.pieces.values())
        own = [one.coordinate_numbers(layout, features) for one in pieces]
        for block in layout.blocks:
            if block.regularized:
                part = layout.slices[block.name]
                numbers[part] = own[self.piece_index(block.name)][part]
        return numbers

    def check_layout(self, layout: Layout) -> None:
        regularized = [block for block in layout.blocks if block.regularized]
        matches = [[fnmatchcase(block.name, key) for key in self.pieces] for block in regularized]
        used = {list(self.pieces)[row.index(True)] for row in matches if any(row)}
        is_complete = all(map(any, matches)) and used == set(self.pieces)
        names = ", ".join(block.name for block in regularized)
        allowed = f"all of {names}, or patterns such as * that match each of them, and no others"
        require(is_complete, "regularizer.blocks", ", ".join(self.pieces), allowed)
        for block in regularized:
            list(self.pieces.values())[self.piece_index(block.name)].check(block.shape)

    @property
    def value(self) -> Kernel:  # type: ignore[override]
        return dispatch_by_piece(dispatch_value, [one.value for one in self.pieces.values()])

    @property
    def prox(self) -> Kernel:  # type: ignore[override]
        return dispatch_by_piece(dispatch_prox, [one.prox for one in self.pieces.values()])

    @property
    def subgradient(self) -> Kernel | None:  # type: ignore[override]
        kernels = [one.subgradient for one in self.pieces.values() if one.subgradient is not None]
        return dispatch_by_piece(dispatch_vector, kernels) if len(kernels) == len(self.pieces) else None

    @property
    def lmo(self) -> Kernel | None:  # type: ignore[override]
        kernels = [one.lmo for one in self.pieces.values() if one.lmo is not None]
        return dispatch_by_piece(dispatch_vector, kernels) if len(kernels) == len(self.pieces) else None


def _regularizer(block: str, options: dict[str, Any]) -> Regularizer:
    """Return the regularizer of one block; raise UserError for an unknown name or parameter."""
    is_mapping = isinstance(options, dict)
    require(is_mapping, f"regularizer.blocks.{block}", options, "a mapping such as {name: l1, strength: 0.1}")
    numbers = dict(options)
    kinds = {name: kind for name, kind in all_regularizers().items() if kind is not Blockwise}
    name = numbers.pop("name", None)
    require(name in kinds, f"regularizer.blocks.{block}.name", name, "one of " + ", ".join(kinds))
    try:
        return kinds[name](**numbers)
    except TypeError as problem:
        raise UserError(f"regularizer.blocks.{block}: {problem}") from None
