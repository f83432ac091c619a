"""Digests of loaded code: of kernels, and of classes defined in an interactive session."""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

from fco_cli.code_digest.modules import code_objects, is_foreign
from fco_cli.code_digest.parse import sha256


def content_of(value: Any, without: Collection[str] = ()) -> str:
    """Return a digest of a loaded function or class: its bytecode and the globals that it reads, except `without`."""
    return sha256(_content(value, without, {}).encode())


def _content(value: Any, without: Collection[str], seen: dict[int, int]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) in seen:
        return f"#{seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({','.join(_content(item, without, seen) for item in value)})"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    function = getattr(value, "py_func", getattr(value, "__func__", getattr(value, "python", value)))
    if isinstance(function, types.FunctionType):
        names = sorted({name for code in code_objects(function.__code__) for name in code.co_names} - set(without))
        scope = function.__globals__
        bound = [f"{name}={_content(scope[name], without, seen)}" for name in names if name in scope]
        defaults = _content(function.__defaults__, without, seen)
        return f"function({_code_content(function.__code__)};{defaults};{','.join(bound)})"
    if isinstance(value, type) and not is_foreign(value.__module__.split(".")[0]):
        members = {name: member for name, member in vars(value).items() if not name.startswith("__")}
        parts = [f"{name}={_content(member, without, seen)}" for name, member in sorted(members.items())]
        return f"class {value.__qualname__}({','.join(parts)})"
    return f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def _code_content(code: types.CodeType) -> str:
    constants = [_code_content(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts]
    if code.co_consts and isinstance(code.co_consts[0], str):
        constants[0] = "None"  # ignore the docstring
    return f"{code.co_code.hex()},{code.co_names},{code.co_varnames},{constants}"
