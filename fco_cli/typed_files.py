"""Readers of stored files: bounded in size, parsed strictly, converted to the schema of the file.

Every file of a record has one schema, a msgspec structure or a dataclass, beside its only reader. Unknown keys are
allowed: a later edition may add some. Whatever is wrong becomes one line that names the file and the key.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")

MEBIBYTE = 2**20
LARGEST_JSON = 4 * MEBIBYTE
LONGEST_LINE = 400  # characters of a message
PLACE = re.compile(r"(?P<fault>.*) - at `(?:key in )?\$\.?(?P<place>.*)`", re.DOTALL)  # as msgspec ends its messages
PATTERN = re.compile(r"`str` matching regex '(.*)'")


class BadRecord(ValueError):
    """What is wrong with a file of a record, in one line."""


class Missing(BadRecord):
    """There is no such file."""


class Unreadable(BadRecord):
    """The system does not open or read the file."""


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; refuse a pipe, a device, a folder or a file beyond `limit` bytes unread."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for a writer
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise BadRecord(f"{path.name}: not a regular file")
            with open(handle, "rb", closefd=False) as file:
                content = file.read(found.st_size + 1) if found.st_size <= limit else b""
        finally:
            os.close(handle)
    except OSError as problem:
        kind = Missing if isinstance(problem, FileNotFoundError) else Unreadable
        raise kind(f"{path.name}: {problem.strerror or problem}") from problem
    if found.st_size > limit or len(content) > limit:
        raise BadRecord(f"{path.name}: larger than {limit / MEBIBYTE:g} MiB")
    return content


def parse_json(content: bytes, name: str) -> Any:
    """Return plain content: UTF-8, without duplicate keys, without NaN or numbers beyond those of a float."""
    try:
        plain = json.loads(
            content.decode(), object_pairs_hook=_distinct, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
        json.dumps(plain, ensure_ascii=False).encode()  # half a character, which JSON can spell, is not text
    except (ValueError, RecursionError) as problem:
        fault = "nested too deeply" if isinstance(problem, RecursionError) else one_printable_line(str(problem))
        raise BadRecord(f"{name} is not JSON: {fault}") from problem
    return plain


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return content


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refuse(text[:20])


def _whole(text: str) -> int:
    """Return a whole number of at most 64 bits."""
    number = int(text) if len(text) < 20 else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:20]}... has more than 64 bits")
    return number


def converted(plain: Any, schema: type[T], name: str) -> T:
    """Return plain content as the schema's type; raise BadRecord, which names the key, if it does not fit."""
    try:
        return msgspec.convert(plain, schema)
    except msgspec.ValidationError as problem:
        found = PLACE.fullmatch(str(problem))
        fault, place = (found["fault"], found["place"]) if found else (str(problem), "")
        fault = PATTERN.sub(lambda found: "text of the form " + found[1].replace("\\\\", "\\"), fault)
        where = f"{name}: {place}" if place else name
        raise BadRecord(one_printable_line(f"{where}: {fault[:1].lower()}{fault[1:]}")) from problem


def read_json(path: Path, schema: type[T], limit: int = LARGEST_JSON) -> T:
    """Return the content of a JSON file as the schema's type."""
    return converted(parse_json(read_bounded(path, limit), path.name), schema, path.name)


def read_npz(path: Path, limit: int) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file that is no larger than `limit`, packed or unpacked; pickles are refused."""
    content = io.BytesIO(read_bounded(path, limit))
    try:
        with zipfile.ZipFile(content) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise BadRecord(f"unpacks to more than {limit / MEBIBYTE:g} MiB")
        with np.load(content, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    except Exception as problem:  # a changed bit in a zip file raises any of a dozen types, NotImplementedError too
        raise BadRecord(one_printable_line(f"{path.name}: {problem}")) from problem


def read_arrays(path: Path, limit: int) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file as float64; refuse those that hold anything but real numbers."""
    arrays = read_npz(path, limit)
    for name, values in arrays.items():
        if values.dtype.kind not in "fiub":
            raise BadRecord(one_printable_line(f"{path.name}: array {name!r} is not of real numbers"))
    return {name: values.astype(float) for name, values in arrays.items()}


def one_printable_line(text: str) -> str:
    """Return text on one line, without control characters, shortened if it is long."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in " ".join(text.split()))
    return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 1] + "…"
