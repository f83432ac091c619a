"""The reader of config.yaml: plain values only, neither nested deeply nor with aliases."""

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

DEEPEST = 40  # levels of a configuration
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
GROUP_BEGINS = re.compile(r"^(?=[A-Za-z_])", re.MULTILINE)  # of a configuration: a line that is not indented
LONGEST_GROUP = 4096  # characters, of those that are kept


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a mapping of plain values: text, numbers, booleans, null, and lists and mappings of them.

    The records of a sweep share most of their groups: each is parsed once, and must not be changed by the caller.
    """
    try:
        text = read_bounded(path, MEBIBYTE).decode()
    except UnicodeDecodeError as problem:
        raise BadRecord(f"{path.name} is not YAML: {problem}") from problem
    before, *groups = GROUP_BEGINS.split(text)
    if not before and max(map(len, groups), default=0) <= LONGEST_GROUP:
        with suppress(BadRecord):  # its lines are no groups, or it is damaged: parsing the whole shows which
            return {key: value for group in groups for key, value in _group(path.name, group).items()}
    return parse_yaml(path.name, text)


def parse_yaml(name: str, text: str) -> dict[str, Any]:
    """Return the mapping that a text of YAML holds."""
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
    if sum(text.count(sign) for sign in ("[", "{", "- ", "? ")) > DEEPEST or ("*" in text and "&" in text):
        _refuse_knots(name, text)
    content = yaml.load(text, Loader=LOADER)
    if not isinstance(content, dict):
        raise BadRecord(f"{name}: not a mapping with keys")
    _require_plain(name, content)
    return content


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


def is_number(value: Any) -> bool:
    """True for a finite number that is no boolean; whole numbers beyond what a float can hold are none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    """True for text; half a character, which JSON and YAML can spell, is none."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)
