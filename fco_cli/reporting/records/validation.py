"""Safe reader of config.yaml: accepts plain values only, rejects deep nesting and aliases."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fco_cli.reporting.text import printable
from fco_cli.typed_files import MEBIBYTE, BadRecord, read_bounded

MAX_DEPTH = 40  # nesting levels of a configuration
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
GROUP_START = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # unindented line: start of a top-level group
MAX_GROUP_LENGTH = 4096  # characters of a cached group


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping of plain values: text, numbers, booleans, null, and lists and mappings of them.

    The records of a sweep share most of their top-level groups, so parsed groups are cached: callers must not modify
    the returned values.
    """
    try:
        text = read_bounded(path, MEBIBYTE).decode()
    except UnicodeDecodeError as problem:
        raise BadRecord(f"{path.name} is not YAML: {problem}") from problem
    before, *groups = GROUP_START.split(text)
    if not before and max(map(len, groups), default=0) <= MAX_GROUP_LENGTH:
        with suppress(BadRecord):  # not splittable into groups, or damaged: parse the whole text
            return {key: value for group in groups for key, value in _group(path.name, group).items()}
    return parse_yaml(path.name, text)


def parse_yaml(name: str, text: str) -> dict[str, Any]:
    """Parse a YAML text into a mapping; raise BadRecord if it is invalid."""
    try:
        return _mapping(name, text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord(f"{name} is not YAML: {_first_line(problem)}") from problem


@lru_cache(maxsize=10_000)
def _group(name: str, text: str) -> dict[str, Any]:
    return parse_yaml(name, text)


def _mapping(name: str, text: str) -> dict[str, Any]:
    if sum(text.count(sign) for sign in ("[", "{", "- ", "? ")) > MAX_DEPTH or ("*" in text and "&" in text):
        _check_nesting(name, text)
    content = yaml.load(text, Loader=LOADER)
    if not isinstance(content, dict):
        raise BadRecord(f"{name}: must be a mapping")
    _check_plain(name, content)
    return content


def _check_nesting(name: str, text: str) -> None:
    """Raise BadRecord for deep nesting, which crashes the C loader, and for aliases, which can expand to any size."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
            raise BadRecord(f"{name}: nested too deeply, or with aliases")


def _check_plain(where: str, content: Any) -> None:
    if isinstance(content, dict):
        for key, value in content.items():
            if not is_text(key):
                raise BadRecord(f"{where}: the key {printable(key)} is not text")
            _check_plain(where, value)
    elif isinstance(content, list):
        for value in content:
            _check_plain(where, value)
    elif not (content is None or isinstance(content, bool | int | float) or is_text(content)):
        raise BadRecord(f"{where}: {printable(content)} is neither text nor a number")


def _first_line(problem: BaseException) -> str:
    return printable(" ".join(str(problem).split()) or type(problem).__name__)


def is_number(value: Any) -> bool:
    """Return True for a finite float or an integer below 2**63 in magnitude; False for booleans."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    """Return True for a string without unpaired surrogates, which JSON and YAML can encode."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)
