"""Registry of classes by name: the subclasses of a base class that define `name`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any


def members(base: Any, package: str | None = None) -> dict[str, Any]:
    """Return the subclasses of `base` that define `name`, by that name, after importing all modules of `package`."""
    if package is not None:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")
    return {vars(kind)["name"]: kind for kind in _descendants(base) if isinstance(vars(kind).get("name"), str)}


def _descendants(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)
