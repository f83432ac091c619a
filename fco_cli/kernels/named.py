"""Arrays by name inside kernels: tuple types with named fields, made from the names that an algorithm declares."""

from __future__ import annotations

import functools
from collections import namedtuple
from types import ModuleType
from typing import Any

from fco_cli.kernels.compiled import Kernel, kernel

PREFIX = "Named"


@functools.cache
def named(names: tuple[str, ...]) -> Any:
    """The type of tuples with these fields."""
    return namedtuple("__".join((PREFIX, *names)), names, module=__name__)


def __getattr__(name: str) -> Any:
    """Numba's cache on disk finds a type again by its name, in a process that may not have made it yet."""
    prefix, *names = name.split("__")
    if prefix != PREFIX:
        raise AttributeError(name)
    return named(tuple(names))


@functools.cache
def pick(names: tuple[str, ...]) -> Kernel:
    """A kernel pick(stack, i): the arrays stack[i, 0], stack[i, 1], ... as a tuple with these names."""
    arrays = "".join(f"stack[i, {n}], " for n in range(len(names)))
    kind = named(names)
    text = ModuleType(__name__)
    text.__dict__[kind.__name__] = kind
    function = f"pick_{kind.__name__}"
    exec(f"def {function}(stack, i):\n    return {kind.__name__}({arrays})", text.__dict__)
    return kernel(getattr(text, function))
