"""Layout of the parameters in one flat vector of named blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

Array = np.ndarray


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
