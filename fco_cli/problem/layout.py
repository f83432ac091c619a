"""Parameters as plain arrays: weights in one flat vector of named blocks, named numbers as record arrays.

A record array has one record per job; kernels and Python read its fields as in `psi.strength`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

Array = np.ndarray
Numbers: TypeAlias = np.ndarray  # a record array [J] with float64 fields, or nested records if psi has several pieces


@dataclass(frozen=True)
class Block:
    """Named block of the parameter vector; the bias is never regularized."""

    name: str
    shape: tuple[int, ...]
    regularized: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Partition of the flat parameter vector into blocks."""

    blocks: tuple[Block, ...]

    @cached_property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)

    @cached_property
    def slices(self) -> dict[str, slice]:
        ends = np.cumsum([block.size for block in self.blocks])
        return {
            block.name: slice(int(end) - block.size, int(end)) for block, end in zip(self.blocks, ends, strict=True)
        }

    @cached_property
    def table(self) -> Array:
        """Table for kernels with one row per block: start, stop, rows, columns, regularized."""
        rows = []
        for block in self.blocks:
            part = self.slices[block.name]
            columns = math.prod(block.shape[1:])
            rows.append((part.start, part.stop, block.size // columns, columns, block.regularized))
        return np.array(rows, dtype=np.int64)

    @cached_property
    def regularized(self) -> Array:
        """Mask of the regularized entries of the flat vector: [P]."""
        return np.concatenate([np.full(block.size, block.regularized) for block in self.blocks])

    def view(self, vectors: Array, name: str) -> Array:
        """Return a view of the block `name` of vectors [J, P] as [J, *shape]."""
        block = next(block for block in self.blocks if block.name == name)
        return vectors[:, self.slices[name]].reshape(len(vectors), *block.shape)


def record(values: dict[str, Any]) -> Numbers:
    """Return a record array [1] of numbers and nested records; an empty record gets an unused field."""
    values = values or {"unused": 0.0}  # Numba does not support empty records
    kinds = {name: value.dtype if isinstance(value, np.recarray) else np.dtype(float) for name, value in values.items()}
    array = np.recarray(1, np.dtype(list(kinds.items())))
    for name, value in values.items():
        array[name] = value
    return array


def numbers_of(owner: Any) -> Numbers:
    """Return the numeric fields of a dataclass as a record array [1]."""
    values = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return record({name: value for name, value in values.items() if isinstance(value, int | float)})


class HasNumbers(Protocol):
    @property
    def numbers(self) -> Numbers: ...


def stack_numbers(owners: Iterable[HasNumbers]) -> Numbers:
    """Return the numbers of all jobs [J]; the owners have the same type."""
    return np.concatenate([owner.numbers for owner in owners]).view(np.recarray)
