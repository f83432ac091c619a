"""A sum of separable pieces: every block of parameters has its own regularizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fco_cli.errors import UserError, require
from fco_cli.problem.compiled import Kernel, kernel, specialise
from fco_cli.problem.layout import Array, Layout
from fco_cli.problem.regularizers.base import Regularizer, all_regularizers


def piece(*arguments):  # bound by `specialise` to the kernel of one piece, `others` to the choice among the rest
    raise NotImplementedError


def others(*arguments):
    raise NotImplementedError


# Which piece a block belongs to is written before its numbers: i zeros and a one for the i-th.


@kernel
def value_of_one(w, p, shape):
    return piece(w, p[1:], shape) if p[0] == 1 else others(w, p[1:], shape)


@kernel
def prox_of_one(z, t, p, shape, out):
    if p[0] == 1:
        piece(z, t, p[1:], shape, out)
    else:
        others(z, t, p[1:], shape, out)


@kernel
def subgradient_of_one(w, p, shape, out):
    if p[0] == 1:
        piece(w, p[1:], shape, out)
    else:
        others(w, p[1:], shape, out)


def choice(template: Kernel, kernels: list[Kernel]) -> Kernel:
    """`template` for the first of the kernels, or else for the second, ..."""
    chain = kernels[-1]  # after the last there is no other; its place is never reached
    for one in reversed(kernels):
        chain = specialise(template, piece=one, others=chain)
    return chain


@dataclass(kw_only=True)
class Blockwise(Regularizer):
    """psi(w) = sum over blocks b of psi_b(w_b).

    `blocks` names for every regularised block its regularizer and that one's numbers, for example
    {kernel: {name: l1, strength: 0.1}}.
    """

    blocks: dict[str, Any]
    name: str = "blockwise"

    def __post_init__(self) -> None:
        require(len(self.blocks) > 0, "regularizer.blocks", self.blocks, "block: {name: ..., ...} for every block")
        self.convex = all(one.convex for one in self.pieces.values())  # type: ignore[misc]
        self.constraint = all(one.constraint for one in self.pieces.values())  # type: ignore[misc]

    @cached_property
    def pieces(self) -> dict[str, Regularizer]:
        return {block: _regularizer(block, options) for block, options in self.blocks.items()}

    @property
    def kind(self) -> str:
        return f"{self.name}({', '.join(f'{block}={one.kind}' for block, one in self.pieces.items())})"

    @property
    def _numbers(self) -> list[Array]:
        """Of every piece, behind the zeros and the one that lead to it."""
        return [np.concatenate([np.zeros(i), [1.0], one.parameters]) for i, one in enumerate(self.pieces.values())]

    @property
    def parameters(self) -> Array:
        return np.concatenate(self._numbers)

    def places(self, layout: Layout, count: int) -> Array:
        ends = np.cumsum([len(numbers) for numbers in self._numbers])
        starts = dict(zip(self.pieces, np.append(0, ends), strict=False))
        stops = dict(zip(self.pieces, ends, strict=True))
        return np.array([(starts.get(block.name, 0), stops.get(block.name, 0)) for block in layout.blocks])

    def check_layout(self, layout: Layout) -> None:
        regularised = {block.name: block for block in layout.blocks if block.regularised}
        complete = set(self.pieces) == set(regularised)
        require(complete, "regularizer.blocks", ", ".join(self.pieces), f"all of {', '.join(regularised)}, no others")
        for name, one in self.pieces.items():
            one.check(regularised[name].shape)

    @property
    def value(self) -> Kernel:  # type: ignore[override]
        return choice(value_of_one, [one.value for one in self.pieces.values()])

    @property
    def prox(self) -> Kernel:  # type: ignore[override]
        return choice(prox_of_one, [one.prox for one in self.pieces.values()])

    @property
    def subgradient(self) -> Kernel | None:  # type: ignore[override]
        kernels = [one.subgradient for one in self.pieces.values() if one.subgradient is not None]
        return choice(subgradient_of_one, kernels) if len(kernels) == len(self.pieces) else None


def _regularizer(block: str, options: dict[str, Any]) -> Regularizer:
    numbers = dict(options)
    kinds = {name: kind for name, kind in all_regularizers().items() if kind is not Blockwise}
    name = numbers.pop("name", None)
    require(name in kinds, f"regularizer.blocks.{block}.name", name, "one of " + ", ".join(kinds))
    try:
        return kinds[name](**numbers)
    except TypeError as problem:
        raise UserError(f"regularizer.blocks.{block}: {problem}") from None
