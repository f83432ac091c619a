"""What travels: a kind, a head of plain values and named arrays, as bytes that are checked before they are believed.

Eight bytes for the length of a JSON text, the text, then the arrays' numbers one after another. Nothing is unpickled or
unpacked, and nothing is allocated that the message does not bring.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fco_cli.problem.layout import Array

LENGTH = 8  # bytes
LONGEST_HEAD = 16 * 2**20
DTYPES = ("float64", "float32", "int64", "uint64")


class BadMessage(Exception):
    """Bytes that are no message of ours, or not the one that was expected."""


@dataclass(frozen=True)
class Message:
    """A question or an answer."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def packed(self) -> bytes:
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        shapes = {name: [values.dtype.name, *values.shape] for name, values in arrays.items()}
        text = json.dumps({"kind": self.kind, "head": self.head, "arrays": shapes}).encode()
        return b"".join([len(text).to_bytes(LENGTH, "big"), text, *(values.tobytes() for values in arrays.values())])

    @classmethod
    def unpacked(cls, content: bytes) -> Message:
        length = int.from_bytes(content[:LENGTH], "big")
        if length > min(LONGEST_HEAD, len(content) - LENGTH):
            raise BadMessage("its head is longer than it is")
        try:
            top = json.loads(content[LENGTH : LENGTH + length])
            kind, head, shapes = top["kind"], top["head"], top["arrays"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadMessage("its head is not what a head must be") from None
        if not (isinstance(kind, str) and isinstance(head, dict) and isinstance(shapes, dict)):
            raise BadMessage("its head is not what a head must be")
        arrays, at = {}, LENGTH + length
        for name, declared in shapes.items():
            dtype, shape = _checked(declared)
            size = dtype.itemsize * math.prod(shape)
            if at + size > len(content):
                raise BadMessage("it declares more numbers than it brings")
            arrays[name] = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape)
            at += size
        if at != len(content):
            raise BadMessage("it brings more numbers than it declares")
        return cls(kind, head, arrays)

    def wanted(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that must be there, as it must be; a copy that may be written to."""
        values, dtype = self.arrays.get(name), np.dtype(dtype)
        if values is None:
            raise BadMessage(f"{self.kind}: the array {name} is missing")
        if values.shape != shape or values.dtype != dtype:
            got, must = _shown(values.dtype, values.shape), _shown(dtype, shape)
            raise BadMessage(f"{self.kind}: the array {name} is {got}, must be {must}")
        return values.copy()

    def value(self, name: str, kind: type) -> Any:
        """A value of the head that must be there, of that type."""
        value = self.head.get(name)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise BadMessage(f"{self.kind}: {name} must be of type {kind.__name__}")
        return value


def _checked(declared: Any) -> tuple[np.dtype, tuple[int, ...]]:
    if not (isinstance(declared, list) and declared and declared[0] in DTYPES):
        raise BadMessage("an array is of no type that travels")
    shape = tuple(declared[1:])
    if not all(type(size) is int and 0 <= size < 2**48 for size in shape) or len(shape) > 8:
        raise BadMessage("an array has no shape")
    return np.dtype(declared[0]), shape


def _shown(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} [{', '.join(map(str, shape))}]"
