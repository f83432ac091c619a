"""Descriptions of configuration keys: the comments behind the fields of schemas and behind the keys of YAML files."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

KEY = re.compile(r"^\s*(?:- *)?([\w/]+):[^#]*#\s*(.*)$")
CONTINUATION = re.compile(r"^\s{8,}#\s*(.*)$")


def field_descriptions(kind: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass and of its bases, with the comment lines that continue it."""
    descriptions: dict[str, str] = {}
    for owner in reversed(inspect.getmro(kind)):
        if owner is object or not hasattr(owner, "__dataclass_fields__"):
            continue
        lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
        (definition,) = ast.parse("\n".join(lines)).body
        assert isinstance(definition, ast.ClassDef)
        for node in definition.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if text := _comment_after(lines, node.end_lineno or node.lineno):
                descriptions[node.target.id] = text
    return descriptions


def _comment_after(lines: list[str], number: int) -> str:
    _, mark, text = lines[number - 1].partition("  # ")
    if not mark:
        return ""
    for line in lines[number:]:
        if not line.strip().startswith("# "):
            break
        text += " " + line.strip()[2:]
    return text


def yaml_descriptions(path: Path) -> dict[str, str]:
    """Return the comment behind each key of a YAML file, with the comment lines that continue it; keys are unique."""
    descriptions: dict[str, str] = {}
    last = None
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if match := KEY.match(line):
            last = match[1]
            descriptions[last] = match[2]
        elif last and (more := CONTINUATION.match(line)):
            descriptions[last] += f" {more[1]}"
        else:
            last = None
    return descriptions
