"""Mutations of a message between sites: every value of its head, its arrays and its bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fco_cli.federation.message import LENGTH, Message

VALUES: dict[str, Any] = {
    "null": None, "true": True, "text": "x", "empty text": "", "escape": "\x1b[31m\nx", "path": "../../etc/passwd",
    "0": 0, "-1": -1, "2^31": 2**31 - 1, "2^62": 2**62, "10^30": 10**30, "10^400": 10**400, "0.5": 0.5, "-1.5": -1.5,
    "1e308": 1e308, "NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "[]": [], "{}": {}, "[null]": [None], "[[]]": [[]],
}  # fmt: skip
NUMBERS = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "1e308": 1e308, "-1e308": -1e308, "-1": -1.0, "0.5": 0.5}
DEPTH = 50_000

Mutation = tuple[str, bytes]


def mutations(content: bytes, random: np.random.Generator) -> list[Mutation]:
    """Return all mutations of a message, by name; only positions of flipped bits and cuts are random."""
    return [*_of_head(content), *_of_arrays(content), *_of_bytes(content, random)]


def _packed(kind: Any, head: Any, shapes: Any, data: bytes) -> bytes:
    text = json.dumps({"kind": kind, "head": head, "arrays": shapes}).encode()
    return len(text).to_bytes(LENGTH, "big") + text + data


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = LENGTH + int.from_bytes(content[:LENGTH], "big")
    return json.loads(content[LENGTH:length]), content[length:]


def _of_head(content: bytes) -> Iterator[Mutation]:
    top, data = _parts(content)

    def changed(path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> bytes:
        head = copy.deepcopy(top["head"])
        parent = head
        for key in path[:-1]:
            parent = parent[key]
        change(parent, path[-1])
        return _packed(top["kind"], head, top["arrays"], data)

    def rename(parent: Any, key: Any) -> None:
        parent[f"{key}x"] = parent.pop(key)

    for path, parent in _paths(top["head"]):
        name = ".".join(map(str, path))
        yield f"{name} dropped", changed(path, lambda parent, key: parent.__delitem__(key))
        for what, value in VALUES.items():
            yield f"{name} = {what}", changed(path, lambda parent, key, value=value: parent.__setitem__(key, value))
        if isinstance(parent, dict):
            yield f"{name} renamed", changed(path, rename)
        else:
            yield f"{name} twice", changed(path, lambda parent, key: parent.append(parent[key]))
    yield "an unknown key", _packed(top["kind"], top["head"] | {"more": 1}, top["arrays"], data)
    yield "no head", _packed(top["kind"], None, top["arrays"], data)
    yield "another kind", _packed("load" if top["kind"] != "load" else "save", top["head"], top["arrays"], data)
    yield "no kind", _packed(None, top["head"], top["arrays"], data)
    text = json.dumps({"kind": top["kind"], "head": {"deep": 0}, "arrays": {}}).replace("0", "[" * DEPTH + "]" * DEPTH)
    yield "deep nesting", len(text).to_bytes(LENGTH, "big") + text.encode()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the paths of all values with their containers; of a list, only the first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key), value
        yield from _paths(one, (*path, key))


def _of_arrays(content: bytes) -> Iterator[Mutation]:
    message = Message.unpacked(content)
    kind, head, arrays = message.kind, message.head, message.arrays

    def packed(changed: dict[str, Any]) -> bytes:
        shapes = {name: [values.dtype.name, *values.shape] for name, values in changed.items()}
        return _packed(
            kind, head, shapes, b"".join(np.ascontiguousarray(values).tobytes() for values in changed.values())
        )

    yield "one more array", packed(arrays | {"more": np.zeros(1)})
    for name, values in arrays.items():
        others = {key: one for key, one in arrays.items() if key != name}
        yield f"{name} dropped", packed(others)
        yield f"{name} renamed", packed(others | {f"{name}x": values})
        other = np.float32 if values.dtype == float else np.float64
        yield f"{name} of another type", packed(arrays | {name: values.astype(other)})
        yield f"{name} as whole numbers", packed(arrays | {name: np.zeros(values.shape, np.int64)})
        yield f"{name} with one more", packed(arrays | {name: np.append(values, values[-1:], axis=0)})
        yield f"{name} flat", packed(arrays | {name: values.reshape(-1)[None]})
        yield f"{name} empty", packed(arrays | {name: values[:0]})
        yield f"{name} transposed", packed(arrays | {name: values.T[..., None]})
        whole = values.dtype.kind in "iu"
        for what, number in ({"7": 7, "2^63 - 1": 2**63 - 1} if whole else NUMBERS).items():
            with np.errstate(over="ignore"):  # in single precision
                filled = np.full_like(values, number)
            one = values.copy()
            one.flat[-1] = filled.flat[-1]
            yield f"{name} = {what}", packed(arrays | {name: filled})
            yield f"{name}[-1] = {what}", packed(arrays | {name: one})
        if values.dtype == np.int64:
            yield f"{name} = -1", packed(arrays | {name: np.full_like(values, -1)})
        for what, declared in {
            "object": ["object", 1], "no shape": [], "negative": [values.dtype.name, -1], "huge": ["float64", 2**47],
            "text": "float64", "many": ["float64", *[1] * 40], "zeros": ["float64", 0, 2**47, 2**47],
        }.items():  # fmt: skip
            top, data = _parts(content)
            yield f"{name} declared {what}", _packed(kind, head, top["arrays"] | {name: declared}, data)


def _of_bytes(content: bytes, random: np.random.Generator) -> Iterator[Mutation]:
    yield "no bytes", b""
    yield "one more byte", content + b"\0"
    yield "garbage", random.bytes(len(content))
    for n in range(8):
        cut = int(random.integers(len(content)))
        yield f"cut at {cut}", content[:cut]
        at, bit = int(random.integers(len(content))), int(random.integers(8))
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        yield f"bit {bit} of byte {at} flipped ({n})", bytes(flipped)
