"""JSON schemas of the YAML groups, for editors: `fco-run --schema conf/schemas` writes them.

A file whose first line is `# @package _global_` is described by run.json, any other file by the schema of its group. A
value can always be an interpolation (`${...}`) or missing (`???`).
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fco_cli.config.descriptions import field_descriptions, yaml_descriptions
from fco_cli.config.schemas import GlmSettings, PathSettings, RunConfig, families
from fco_cli.help import GROUPS, shipped_options
from fco_cli.simulation.hparams import Hparams

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"
PLACEHOLDER: Schema = {"type": "string", "pattern": r"^(\$\{.*\}|\?\?\?)$"}
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
DEFAULTS: Schema = {"type": "array", "description": "Hydra's list of defaults"}


def write_schemas(folder: Path) -> list[Path]:
    """Write a file for every group and one for files that set several groups; return their paths."""
    from fco_cli.files import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, schema in json_schemas().items():
        path = folder / f"{name}.json"
        write_atomically(path, (json.dumps(schema, indent=1, ensure_ascii=False) + "\n").encode())
        written.append(path)
    return written


def json_schemas() -> dict[str, Schema]:
    """Return the schemas by file name."""
    groups = {group: _group_schema(group, kinds.values()) for group, kinds in families().items()}
    groups["hparams"] = _object([Hparams], _comments("base", ["hparams"]))
    single = {"path": PathSettings, "glm": GlmSettings}
    run = _object([RunConfig], yaml_descriptions(Path(str(files("fco_cli.conf") / "config.yaml"))))
    run["properties"] |= {name: _object([kind], {}) for name, kind in single.items()}
    run["properties"] |= {name: {"anyOf": [{"type": "string"}, schema]} for name, schema in groups.items()}
    run["properties"] |= {"theory": {}, "hydra": {}}
    named = {"run": run, **groups}
    return {
        name: {"$schema": DIALECT, "title": f"{name}: {GROUPS.get(name, 'configuration of a run')}", **schema}
        for name, schema in named.items()
    }


def _group_schema(group: str, kinds: Iterable[type]) -> Schema:
    """Return the schema of a group: the keys of all its options."""
    own = [kind for kind in kinds if kind.__module__.startswith("fco_cli.")]
    own.sort(key=lambda kind: (kind.__module__, kind.__qualname__))  # not in the order of imports
    described = _comments(group, shipped_options(group))
    if group == "task":
        described = _comments("base", ["tabular"]) | described
    return _object(own, described)


def _comments(group: str, names: Iterable[str]) -> dict[str, str]:
    """Return the comments of a group's YAML files by key; the first file wins."""
    folder = Path(str(files("fco_cli.conf"))) / group
    comments: dict[str, str] = {}
    for name in names:
        own = yaml_descriptions(folder / f"{name}.yaml")
        comments |= {key: text for key, text in own.items() if key not in comments}
    return comments


def _object(kinds: Iterable[type], described: dict[str, str]) -> Schema:
    """Return the schema of an object with the fields of some dataclasses and no others."""
    properties: dict[str, list[Schema]] = {}
    texts: dict[str, str] = {}
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        texts |= {key: text for key, text in _field_descriptions(kind).items() if key not in texts}
        for field in fields(kind):
            schema = _type_schema(hints[field.name])
            if schema not in properties.setdefault(field.name, []):
                properties[field.name].append(schema)
    texts |= described
    result: dict[str, Schema] = {}
    for key, schemas in sorted(properties.items()):
        allowed = [one for schema in schemas for one in schema.get("anyOf", [schema])]
        result[key] = {"anyOf": [one for k, one in enumerate(allowed) if one not in allowed[:k]]}
        if key in texts:
            result[key]["description"] = texts[key]
    return {"type": "object", "additionalProperties": False, "properties": {"defaults": DEFAULTS, **result}}


@cache
def _field_descriptions(kind: type) -> dict[str, str]:
    return field_descriptions(kind)


def _type_schema(hint: Any) -> Schema:
    """Return the schema of a field's type, or of a placeholder."""
    if hint is Any:
        return {}
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    allowed: list[Schema] = []
    for member in members:
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if member in JSON_TYPES:
            allowed.append({"type": JSON_TYPES[member]})
        elif origin is list:
            allowed.append({"type": "array", "items": _type_schema(arguments[0])})
        elif origin is dict or member is dict:
            allowed.append({"type": "object"})
        elif is_dataclass(member):
            allowed.append(_object([typing.cast(type, member)], {}))
        else:
            return {}
    return {"anyOf": [*allowed, PLACEHOLDER]}
