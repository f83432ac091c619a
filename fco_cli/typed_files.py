"""Readers of stored files: bounded in size, parsed strictly, converted to the schema of the file.

Every file of a record has one schema, a msgspec structure or a dataclass, and one reader. Unknown keys are allowed,
since a later version may add some. Errors are reported in one line with the file and the key.
"""

from __future__ import annotations

import csv
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

from fco_cli.errors import UserError

T = TypeVar("T")

MEBIBYTE = 2**20
LARGEST_JSON = 4 * MEBIBYTE
MAX_PAIRS_BYTES = 64 * MEBIBYTE
LONGEST_LINE = 400  # characters of a message
PLACE = re.compile(r"(?P<fault>.*) - at `(?:key in )?\$\.?(?P<place>.*)`", re.DOTALL)  # format of msgspec's messages
PATTERN = re.compile(r"`str` matching regex '(.*)'")


class BadRecord(ValueError):
    """Invalid file of a record, described in one line."""


class Missing(BadRecord):
    """A file that does not exist."""


class Unreadable(BadRecord):
    """A file that the system cannot open or read."""


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; raise BadRecord for other kinds of files or more than `limit` bytes."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for a writer
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise BadRecord(f"{path.name}: not a regular file")
            with open(handle, "rb", closefd=False) as file:
                content = file.read(status.st_size + 1) if status.st_size <= limit else b""
        finally:
            os.close(handle)
    except OSError as problem:
        kind = Missing if isinstance(problem, FileNotFoundError) else Unreadable
        raise kind(f"{path.name}: {problem.strerror or problem}") from problem
    if status.st_size > limit or len(content) > limit:
        raise BadRecord(f"{path.name}: larger than {limit / MEBIBYTE:g} MiB")
    return content


def parse_json(content: bytes, name: str) -> Any:
    """Return the content of a JSON text; raise BadRecord for duplicate keys, NaN, overflow and invalid UTF-8."""
    try:
        plain = json.loads(
            content.decode(), object_pairs_hook=_distinct, parse_constant=_refuse, parse_float=_finite, parse_int=_whole
        )
        json.dumps(plain, ensure_ascii=False).encode()  # raises for lone surrogates, which JSON can escape
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


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if abs(number) < float("inf") else _refuse(text[:20])


def _whole(text: str) -> int:
    """Return an integer of at most 64 bits."""
    number = int(text) if len(text) < 20 else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:20]}... has more than 64 bits")
    return number


def converted(plain: Any, schema: type[T], name: str) -> T:
    """Return plain content converted to the schema's type; raise BadRecord with the key if it is invalid."""
    try:
        return msgspec.convert(plain, schema)
    except msgspec.ValidationError as problem:
        match = PLACE.fullmatch(str(problem))
        fault, place = (match["fault"], match["place"]) if match else (str(problem), "")
        fault = PATTERN.sub(lambda match: "text of the form " + match[1].replace("\\\\", "\\"), fault)
        where = f"{name}: {place}" if place else name
        raise BadRecord(one_printable_line(f"{where}: {fault[:1].lower()}{fault[1:]}")) from problem


def read_json(path: Path, schema: type[T], limit: int = LARGEST_JSON) -> T:
    """Return the content of a JSON file as the schema's type."""
    return converted(parse_json(read_bounded(path, limit), path.name), schema, path.name)


def read_npz(path: Path, limit: int) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file of at most `limit` bytes, compressed or not; raise BadRecord for pickles."""
    content = io.BytesIO(read_bounded(path, limit))
    try:
        with zipfile.ZipFile(content) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise BadRecord(f"unpacks to more than {limit / MEBIBYTE:g} MiB")
        with np.load(content, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    except Exception as problem:  # a damaged zip file raises one of many types, such as NotImplementedError
        raise BadRecord(one_printable_line(f"{path.name}: {problem}")) from problem


def read_arrays(path: Path, limit: int) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file as float64; raise BadRecord if one is not real-valued."""
    arrays = read_npz(path, limit)
    for name, values in arrays.items():
        if values.dtype.kind not in "fiub":
            raise BadRecord(one_printable_line(f"{path.name}: array {name!r} is not of real numbers"))
    return {name: values.astype(float) for name, values in arrays.items()}


def one_printable_line(text: str) -> str:
    """Return text on one line, without control characters, shortened if it is long."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def read_pairs(path: Path, key: str, header: str) -> dict[str, str]:
    """Return a CSV table of two columns with the given header as a mapping from the first to the second."""
    try:
        rows = list(csv.reader(read_bounded(path, MAX_PAIRS_BYTES).decode("utf-8-sig").splitlines(), strict=True))
    except BadRecord as problem:
        raise UserError(f"{key}: {path} cannot be read: {problem}") from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{key}: {path} is not a CSV file in UTF-8: {problem}") from problem
    if not rows or ",".join(rows[0]) != header:
        raise UserError(f"{key}: {path} must begin with the line {header}")
    pairs: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2 or row[0] in pairs:
            fault = "must have two columns" if len(row) != 2 else f"repeats {row[0]!r}"
            raise UserError(f"{key}: {path}, line {number} {fault}")
        pairs[row[0]] = row[1]
    return pairs
