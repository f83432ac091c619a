"""Conversion of received plain values to dataclasses; interpolations, class names and paths are not resolved."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from fco_cli.algorithms import Algorithm
from fco_cli.errors import UserError, no_such_key
from fco_cli.federation.message import BadMessage, converted

T = TypeVar("T")


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


def algorithm_options(algorithm: Algorithm) -> dict[str, Any]:
    """Return the options of a bound algorithm; those of the first job if they vary."""
    options = {key.name: getattr(algorithm, key.name) for key in fields(algorithm)}
    return {key: float(value[0]) if key in algorithm.varying_options() else value for key, value in options.items()}
