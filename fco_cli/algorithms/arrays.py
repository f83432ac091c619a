"""Declared arrays of a method: their shapes, and their places in the buffers [slots, J, P] of messages and memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fco_cli.kernels.compiled import Kernel
from fco_cli.kernels.named import pick
from fco_cli.problem.client_curvature import columns_in
from fco_cli.problem.curvature import packed_size
from fco_cli.problem.layout import Array


@dataclass(frozen=True)
class Vector:
    """Array [J, P]: one vector of the length of the model."""

    name: str
    difference: bool = False  # sent: a difference to client memory, which a transform need not complete later
    model: bool = False  # remembered: the client's model at the end of a round
    personal: bool = False  # remembered: the client's personal model

    def slots(self, size: int) -> int:
        """Return the number of vectors of length `size` = P that the array occupies in a buffer."""
        return 1

    def shape(self, jobs: int, size: int) -> tuple[int, ...]:
        """Return the shape with the job axis first."""
        return jobs, size

    def index(self, start: int, size: int) -> str:
        """Return the index of the array in a buffer [slots, J, P] in which it starts at the slot `start`."""
        return str(start)

    def view(self, slots: Array) -> Array:
        """Return the array in its own shape, for its slots of a buffer."""
        return slots[0]

    def by_job(self, array: Array) -> Array:
        """Return the array with the job axis first."""
        return array


@dataclass(frozen=True)
class Matrix(Vector):
    """Array [P, J, P]: one matrix, row by row."""

    def slots(self, size: int) -> int:
        return size

    def shape(self, jobs: int, size: int) -> tuple[int, ...]:
        return jobs, size, size

    def index(self, start: int, size: int) -> str:
        return f"{start}:{start + size}"

    def view(self, slots: Array) -> Array:
        return slots

    def by_job(self, array: Array) -> Array:
        return array.swapaxes(0, 1)


@dataclass(frozen=True)
class Symmetric(Matrix):
    """Array [slots, J, P]: the upper triangle of a symmetric matrix, row by row; the rest is padded with zeros.

    Entry k of job j is array[k // P, j, k % P]; `triangles` returns the entries with the job axis first.
    """

    most: int | None = None  # number of columns if P is larger, rounded up to fill the vectors; None: P columns

    def columns(self, size: int) -> int:
        """Return the number of columns of the matrix for `size` = P weights."""
        return columns_in.as_python(self.slots(size), size)

    def slots(self, size: int) -> int:
        return -(-packed_size(size if self.most is None else min(size, self.most)) // size)

    def shape(self, jobs: int, size: int) -> tuple[int, ...]:
        return jobs, self.slots(size), size

    def index(self, start: int, size: int) -> str:
        return f"{start}:{start + self.slots(size)}"

    def padding(self, size: int) -> int:
        """Return the number of entries of the array that are not in the triangle."""
        return self.slots(size) * size - packed_size(self.columns(size))

    def triangles(self, array: Array) -> Array:
        """Return the packed triangles [J, A (A + 1) / 2] of an array [J, slots, P]."""
        return array.reshape(len(array), -1)[:, : packed_size(self.columns(array.shape[2]))]


@dataclass(frozen=True)
class Scalar(Vector):
    """Array [J]: one number. A buffer holds it as the first entry of a vector of zeros."""

    def shape(self, jobs: int, size: int) -> tuple[int, ...]:
        return (jobs,)

    def index(self, start: int, size: int) -> str:
        return f"{start}, :, 0"

    def view(self, slots: Array) -> Array:
        return slots[0, :, 0]


def names(arrays: Iterable[Vector]) -> tuple[str, ...]:
    """Return the names of declared arrays."""
    return tuple(array.name for array in arrays)


def slot_count(arrays: Iterable[Vector], size: int) -> int:
    """Return the number of vectors of length `size` that the arrays occupy in a buffer."""
    return sum(array.slots(size) for array in arrays)


def first_slots(arrays: Iterable[Vector], size: int) -> dict[str, int]:
    """Return the first slot of every array in a buffer, by name."""
    starts, start = {}, 0
    for array in arrays:
        starts[array.name] = start
        start += array.slots(size)
    return starts


def views(arrays: Iterable[Vector], buffer: Array) -> dict[str, Array]:
    """Return the arrays in a buffer [slots, J, P] by name, without a copy."""
    arrays, size = tuple(arrays), buffer.shape[-1]
    starts = first_slots(arrays, size)
    return {array.name: array.view(buffer[starts[array.name] :][: array.slots(size)]) for array in arrays}


def by_job(arrays: Iterable[Vector], buffer: Array) -> dict[str, Array]:
    """Return the arrays in a buffer [slots, J, P] by name with the job axis first, without a copy."""
    arrays = tuple(arrays)
    own = views(arrays, buffer)
    return {array.name: array.by_job(own[array.name]) for array in arrays}


def picker(arrays: Iterable[Vector], size: int) -> Kernel:
    """Return the kernel pick(buffers, i): the arrays of client i in buffers [S, slots, J, P], by name."""
    arrays = tuple(arrays)
    starts = first_slots(arrays, size)
    return pick(names(arrays), tuple(array.index(starts[array.name], size) for array in arrays))
