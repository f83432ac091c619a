"""The gate through which every file of a record comes: nothing is read that is not a file of a sane size, nothing is
believed that has not the type it should have. Whatever is wrong becomes one line that names the file and the key.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fco_cli.reporting.text import printable

MEBIBYTE = 2**20
DEEPEST = 40  # levels of a configuration
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
GROUP_BEGINS = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # of a configuration: a line that is not indented
LONGEST_GROUP = 4096  # characters, of those that are kept


class BadRecord(ValueError):
    """What is wrong with a record, in one line."""


def read_bounded(path: Path, limit: int) -> bytes:
    """A regular file's content; a pipe, a device, a folder or a file beyond `limit` bytes is refused unread."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for a writer
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise BadRecord(f"{path.name}: not a regular file")
            content = file.read(limit + 1) if found.st_size <= limit else b""
    except OSError as problem:
        raise BadRecord(f"{path.name}: {problem.strerror or problem}") from problem
    if found.st_size > limit or len(content) > limit:
        raise BadRecord(f"{path.name}: larger than {limit / MEBIBYTE:g} MiB")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        content = json.loads(read_bounded(path, 4 * MEBIBYTE), parse_constant=_no_such_number)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord(f"{path.name} is not JSON: {_first_line(problem)}") from problem
    if not isinstance(content, dict):
        raise BadRecord(f"{path.name}: not an object with keys")
    return content


def _no_such_number(word: str) -> float:
    raise ValueError(f"JSON has no {word}")


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping of plain values: text, numbers, booleans, null, and lists and mappings of them.

    The records of a sweep share most of their groups: each is read once, and what is read is not to be changed.
    """
    try:
        text = read_bounded(path, MEBIBYTE).decode()
        before, *groups = GROUP_BEGINS.split(text)
        if not before and max(map(len, groups), default=0) <= LONGEST_GROUP:
            try:
                return {key: value for group in groups for key, value in _group(path.name, group).items()}
            except (yaml.YAMLError, BadRecord):
                pass  # its lines are no groups, or it is damaged: the whole tells
        return _mapping(path.name, text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord(f"{path.name} is not YAML: {_first_line(problem)}") from problem


@lru_cache(maxsize=10_000)
def _group(name: str, text: str) -> dict[str, Any]:
    return _mapping(name, text)


def _mapping(name: str, text: str) -> dict[str, Any]:
    if sum(text.count(sign) for sign in ("[", "{", "- ", "? ")) > DEEPEST or ("*" in text and "&" in text):
        _refuse_knots(name, text)
    content = yaml.load(text, Loader=LOADER)
    if not isinstance(content, dict):
        raise BadRecord(f"{name}: not a mapping with keys")
    _require_plain(name, content)
    return content


def read_arrays(path: Path, limit: int) -> dict[str, np.ndarray]:
    """The arrays of numbers in an .npz file that is no larger than `limit`, packed or unpacked."""
    content = io.BytesIO(read_bounded(path, limit))
    try:
        with zipfile.ZipFile(content) as archive:
            if sum(member.file_size for member in archive.infolist()) > limit:
                raise BadRecord(f"unpacks to more than {limit / MEBIBYTE:g} MiB")
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name].astype(float) for name in arrays.files}
    except Exception as problem:  # zip files and arrays fail in many ways
        raise BadRecord(f"{path.name}: {printable(str(problem))}") from problem


def _refuse_knots(name: str, text: str) -> None:
    """Deep nesting crashes the loader's C code, and aliases of aliases unfold to any size; no record has either."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST or isinstance(event, yaml.AliasEvent):
            raise BadRecord(f"{name}: nested too deeply, or with aliases")


def _require_plain(where: str, content: Any) -> None:
    if isinstance(content, dict):
        for key, value in content.items():
            if not is_text(key):
                raise BadRecord(f"{where}: the key {printable(key)} is not text")
            _require_plain(where, value)
    elif isinstance(content, list):
        for value in content:
            _require_plain(where, value)
    elif not (content is None or isinstance(content, bool | int | float) or is_text(content)):
        raise BadRecord(f"{where}: {printable(content)} is neither text nor a number")


def _first_line(problem: BaseException) -> str:
    return printable(" ".join(str(problem).split()) or type(problem).__name__)


# What a value must be.


@dataclass(frozen=True)
class Kind:
    """A condition on a value, and the words for it."""

    words: str
    holds: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """A finite number that is no boolean; whole numbers beyond what a float can hold are none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    """Half a character, which JSON and YAML can spell, is none."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


def is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


def matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def or_null(kind: Kind) -> Kind:
    return Kind(f"null or {kind.words}", lambda value: value is None or kind.holds(value))


def or_empty(kind: Kind) -> Kind:
    return Kind(f"empty or {kind.words}", lambda value: value == "" or kind.holds(value))


def list_of(kind: Kind, most: int) -> Kind:
    return Kind(
        f"a list of at most {most}, each {kind.words}",
        lambda value: isinstance(value, list) and len(value) <= most and all(map(kind.holds, value)),
    )


def mapping_of(key: Kind, value: Kind) -> Kind:
    return Kind(
        f"a mapping from {key.words} to {value.words}",
        lambda given: isinstance(given, dict) and all(map(key.holds, given)) and all(map(value.holds, given.values())),
    )


def one_of(*words: str) -> Kind:
    return Kind(" or ".join(words), lambda value: isinstance(value, str) and value in words)


COUNT = Kind("a whole number from 0 to 10^12", lambda value: is_whole(value) and 0 <= value <= 10**12)
POSITIVE_COUNT = Kind("a whole number from 1 to 10^12", lambda value: COUNT.holds(value) and value >= 1)
SEED = Kind("a whole number >= 0", lambda value: is_whole(value) and value >= 0)
NUMBER = Kind("a finite number", is_number)
POSITIVE = Kind("a finite number > 0", lambda value: is_number(value) and value > 0)
NOT_NEGATIVE = Kind("a finite number >= 0", lambda value: is_number(value) and value >= 0)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
GROUP = Kind("a mapping with keys", lambda value: isinstance(value, dict))
TIME = Kind("a time with its zone", is_time)
IDENTITY = Kind("a hexadecimal number", matches("[0-9a-f]{8,64}"))
# It becomes part of a file's name: no separators, no dot in front.
NAME = Kind("a plain name of letters, digits, _, - and .", matches(r"\w[\w.-]{0,79}"))
TEXT = Kind("a text of at most 400 characters", lambda value: isinstance(value, str) and len(value) <= 400)
LINE = Kind("a line of at most 400 characters", lambda value: TEXT.holds(value) and value.isprintable())
METRIC = Kind("a metric's name", matches(r"\w[\w.()@=-]{0,79}"))


def check(file: str, content: dict[str, Any], wanted: dict[str, Kind]) -> None:
    """Every key that is wanted, written with dots, is there and of its kind."""
    for path, kind in wanted.items():
        value: Any = content
        for key in path.split("."):
            if not isinstance(value, dict) or key not in value:
                raise BadRecord(f"{file}: no key {path!r}")
            value = value[key]
        if not kind.holds(value):
            raise BadRecord(f"{file}: {path} is {printable(value)}, must be {kind.words}")
