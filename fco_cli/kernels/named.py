"""Named tuple types for kernels, created from the array names that an algorithm declares."""

from __future__ import annotations

import functools
from collections import namedtuple
from types import ModuleType
from typing import Any

from fco_cli.kernels.compiled import Kernel, kernel

PREFIX = "Named"


@functools.cache
def named(names: tuple[str, ...]) -> Any:
    """Return the named tuple type with these fields."""
    return namedtuple("__".join((PREFIX, *names)), names, module=__name__)


def __getattr__(name: str) -> Any:
    """Return the type with this name: unpickling a cached kernel may need one that this process has not created yet."""
    prefix, *names = name.split("__")
    if prefix != PREFIX:
        raise AttributeError(name)
    return named(tuple(names))


@functools.cache
def pick(names: tuple[str, ...], indices: tuple[str, ...]) -> Kernel:
    """Return the kernel pick(stack, i): the arrays stack[i, index] for these indices, as a tuple with these names."""
    arrays = "".join(f"stack[i, {index}], " for index in indices)
    kind = named(names)
    module = ModuleType(__name__)
    module.__dict__[kind.__name__] = kind
    function = f"pick_{kind.__name__}"
    exec(f"def {function}(stack, i):\n    return {kind.__name__}({arrays})", module.__dict__)
    return kernel(getattr(module, function))
