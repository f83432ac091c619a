"""Wire format of requests and responses: a kind, a head of plain values and named arrays, validated before use.

A message has eight bytes for the length of a JSON text, the text, and the arrays' numbers. Nothing is unpickled or
decompressed, and no memory is allocated beyond the size of the message. Schemas of heads are in schema.py; an
`ArraySpec` declares the shape, type and range of an array. Conversions to dataclasses resolve no interpolations, class
names or paths.
"""

from __future__ import annotations

import hashlib
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from fco_cli.code_digest import digest_of
from fco_cli.errors import UserError, no_such_key
from fco_cli.problem.layout import Array

LENGTH = 8  # bytes of the JSON text's length
MAX_HEAD_BYTES = 128 * 2**20
MAX_MAGNITUDE = 1e150  # magnitude of a loss, a gradient or a sum; beyond it, squares overflow

Arrays = dict[str, Array]
DTYPES = {name: np.dtype(name) for name in ("float64", "float32", "int64", "uint64")}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
Shape = Annotated[list[Annotated[int, msgspec.Meta(ge=1, lt=2**48)]], msgspec.Meta(max_length=8)]
T = TypeVar("T")


class BadMessage(Exception):
    """Bytes that are not a valid message, or not of the expected schema."""


class Envelope(msgspec.Struct, forbid_unknown_fields=True):
    """JSON text of a message; every array is declared as [dtype, *shape]."""

    kind: str
    head: dict[str, Any]
    arrays: dict[str, list[Any]]


@dataclass(frozen=True)
class ArraySpec:
    """Declared shape, type and range of an array."""

    shape: tuple[int, ...]
    dtype: Any = float
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    finite: bool = True  # false: NaN and infinity are allowed too
    optional: bool = False

    def checked(self, name: str, values: Array) -> Array:
        """Return a writable copy of the array; raise BadMessage if it does not match."""
        dtype = np.dtype(self.dtype)
        if values.shape != self.shape or values.dtype != dtype:
            got, allowed = _describe(values.dtype, values.shape), _describe(dtype, self.shape)
            raise BadMessage(f"the array {name} is {got}, must be {allowed}")
        if self.finite and not np.isfinite(values).all():
            raise BadMessage(f"the array {name} is not finite")
        if not self._in_range(values):
            numbers = "whole numbers" if self.whole else "numbers"
            raise BadMessage(f"the array {name} must have {numbers} from {self.low:g} to {self.high:g}")
        return values.copy()

    def _in_range(self, values: Array) -> bool:
        if self.whole and (values != np.floor(values)).any():
            return False
        if self.low > -math.inf and (values < self.low).any():
            return False
        return self.high == math.inf or not ((values > self.high) & (self.finite | (values != math.inf))).any()


@dataclass(frozen=True)
class Message:
    """Request or response."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def packed(self) -> bytes:
        """Return the message as bytes."""
        arrays = {name: np.ascontiguousarray(values) for name, values in self.arrays.items()}
        shapes = {name: [DTYPE_NAMES[values.dtype], *values.shape] for name, values in arrays.items()}
        text = json.dumps({"kind": self.kind, "head": self.head, "arrays": shapes}, allow_nan=False).encode()
        return b"".join([len(text).to_bytes(LENGTH, "big"), text, *(values.tobytes() for values in arrays.values())])

    @classmethod
    def unpacked(cls, content: bytes) -> Message:
        """Return the message in `content`; raise BadMessage if it is invalid."""
        length = int.from_bytes(content[:LENGTH], "big")
        if length > min(MAX_HEAD_BYTES, len(content) - LENGTH):
            raise BadMessage("its head is longer than the message")
        try:
            top = msgspec.json.decode(content[LENGTH : LENGTH + length], type=Envelope)
        except (ValueError, RecursionError) as problem:
            raise BadMessage(f"its head is invalid: {reason_of(problem)}") from None
        arrays, offset = {}, LENGTH + length
        for name, declared in top.arrays.items():
            dtype, shape = _declared(name, declared)
            size = dtype.itemsize * math.prod(shape)
            if offset + size > len(content):
                raise BadMessage("it declares more numbers than it contains")
            arrays[name] = np.frombuffer(content, dtype, math.prod(shape), offset).reshape(shape)
            offset += size
        if offset != len(content):
            raise BadMessage("it contains more numbers than it declares")
        return cls(top.kind, top.head, arrays)

    def head_as(self, schema: type[T]) -> T:
        """Return the head as an object of a schema."""
        return converted(self.head, schema)


def converted(values: Any, schema: type[T]) -> T:
    """Return plain values as an object of that type; raise BadMessage if they do not fit."""
    try:
        return msgspec.convert(values, schema)
    except (ValueError, OverflowError, RecursionError) as problem:
        raise BadMessage(reason_of(problem)) from None


def read_arrays(arrays: Mapping[str, Array], specs: Mapping[str, ArraySpec]) -> Arrays:
    """Return copies of the arrays as declared; raise BadMessage if one is missing, unknown or invalid."""
    if unknown := sorted(arrays.keys() - specs.keys()):
        raise BadMessage(f"the array {unknown[0]} is unknown")
    for name, spec in specs.items():
        if name not in arrays and not spec.optional:
            raise BadMessage(f"the array {name} is missing")
    return {name: spec.checked(name, arrays[name]) for name, spec in specs.items() if name in arrays}


def reason_of(problem: Exception) -> str:
    """Return msgspec's message with the field first: `seed: expected int, got str`."""
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    text, _, path = str(problem).partition(" - at ")
    path = path.strip("`").removeprefix("$").removeprefix(".")
    text = (text[:1].lower() + text[1:]).replace("`", "")
    return f"{path}: {text}" if path else text


def _declared(name: str, declared: list[Any]) -> tuple[np.dtype, tuple[int, ...]]:
    dtype = DTYPES.get(declared[0]) if declared and isinstance(declared[0], str) else None
    if dtype is None:
        raise BadMessage(f"the array {name} has an invalid type, must be one of {', '.join(DTYPES)}")
    try:
        return dtype, tuple(msgspec.convert(declared[1:], Shape))
    except ValueError as problem:
        raise BadMessage(f"the array {name} has an invalid shape: {reason_of(problem)}") from None


def _describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f"{dtype.name} [{', '.join(map(str, shape))}]"


def parse_dataclass(kind: type[T], values: Any, where: str) -> T:
    """Return an object of a dataclass; raise UserError if a value is missing, unknown or of another type."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: must be a mapping")
    hints, known = typing.get_type_hints(kind), [key.name for key in fields(kind)]  # type: ignore[arg-type]
    options = {}
    for key, value in values.items():
        if key not in known:
            raise no_such_key(f"{where}.{key}", known)
        try:
            options[key] = converted(value, hints[key])
        except BadMessage as problem:
            raise UserError(f"{where}.{key}: {problem}") from None
    for key in fields(kind):  # type: ignore[arg-type]
        if key.name not in values and key.default is MISSING and key.default_factory is MISSING:
            raise UserError(f"{where}.{key.name}: is missing")
    return kind(**options)


def parse_by_name(kinds: dict[str, Any], values: Any, where: str) -> Any:
    """Return an object of the dataclass that `values["name"]` selects."""
    name = values.get("name") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise UserError(f"{where}.name: must be one of {', '.join(kinds)}")
    return parse_dataclass(kinds[name], values, where)


def plugin_digests(**parts: Any) -> dict[str, str]:
    """Return the code digests of the parts whose classes are defined in plug-ins, by the names of the parts."""
    kinds = {name: type(part) for name, part in parts.items()}
    return {name: digest_of((kind,)) for name, kind in kinds.items() if not kind.__module__.startswith("fco_cli.")}


def names_digest(names: list[str]) -> str:
    """Return a digest of the features' names, to compare sites."""
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
