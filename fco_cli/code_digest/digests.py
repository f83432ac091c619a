"""Digests of definitions and of all definitions that they refer to.

References are resolved by name through imports, at the top of a module or inside a function, within this package and
the user's own modules. Classes that are selected by name in the configuration have no reference in the source: callers
pass them as additional roots. `content_of` is the digest of loaded code: of kernels, and of classes defined in an
interactive session.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from fco_cli.code_digest.modules import code_objects, is_foreign, parsed_module, path_of
from fco_cli.code_digest.parse import parsed_modules, sha256

# These packages print, check input and write files; no numerical result depends on them.
WITHOUT_NUMBERS = ("errors", "files", "cache_folders", "memory_limit", "help", "code_digest")

LOAD_GLOBAL, LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
Definition = tuple[str, str]  # module and name; the name "*" stands for statements that define no name


def _resolve(module: str, name: str) -> Iterator[Definition]:
    """Yield the definitions to which a name at the top level of a module refers."""
    parsed = parsed_module(module)
    if parsed is None:
        return
    head, _, attribute = name.partition(".")
    if head in parsed.definitions:
        yield module, head
    elif head in parsed.imports:
        target, _, imported = parsed.imports[head].partition(":")
        yield from _resolve_import(target, imported, attribute)


def _resolve_import(target: str, imported: str, attribute: str = "") -> Iterator[Definition]:
    """Yield the definitions that `from target import imported` imports.

    If a module is imported, yield the definition of its `attribute`, or all its definitions if that is empty.
    """
    if imported and path_of(f"{target}.{imported}") is not None:
        target, imported = f"{target}.{imported}", ""
    parsed = parsed_module(target)
    if parsed is None:
        return
    if imported == "*" or (not imported and not attribute):
        yield from ((target, name) for name in parsed.definitions)
    elif not imported and attribute and path_of(f"{target}.{attribute}") is not None:
        yield from _resolve_import(f"{target}.{attribute}", "")
    else:
        yield from _resolve(target, imported or attribute)


def reachable(roots: Iterable[Definition], without: tuple[str, ...] = ()) -> dict[Definition, str]:
    """Return the digests of the roots and of all definitions that they refer to, except in the packages `without`."""
    excluded = tuple(f"fco_cli.{name}" for name in (*WITHOUT_NUMBERS, *without))
    digests: dict[Definition, str] = {}
    waiting = list(roots)
    while waiting:
        definition = module, name = waiting.pop()
        if definition in digests or is_within(module, excluded):
            continue
        parsed = parsed_module(module)
        if parsed is None:
            continue
        if name not in parsed.definitions:
            waiting += [other for other in _resolve(module, name) if other != definition]
            continue
        body = parsed.definitions[name]
        digests[definition] = body.digest
        if "*" in parsed.definitions:
            waiting.append((module, "*"))
        for reference in body.references:
            if ":" in reference:
                target, _, imported = reference.partition(":")
                waiting += _resolve_import(target, imported)
            else:
                waiting += _resolve(module, reference)
    return digests


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    """Return True if the module is one of the packages or inside one of them."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def definition_of(kind: Any) -> Definition:
    """Return the definition of a class or function."""
    return kind.__module__, kind.__qualname__.split(".")[0]


@functools.cache
def digest_of(roots: tuple[Any, ...], without: tuple[str, ...] = ()) -> str:
    """Return one digest of `roots` (classes, functions or definitions) and of all definitions that they refer to."""
    definitions = [root if isinstance(root, tuple) else definition_of(root) for root in roots]
    digests = reachable(definitions, without)
    parsed_modules.save()
    in_memory = [
        f"{module}:{name} {content_of(root)}"
        for root, (module, name) in zip(roots, definitions, strict=True)
        if not isinstance(root, tuple) and (module, name) not in digests
    ]
    lines = [f"{module}:{name} {digest}" for (module, name), digest in digests.items()]
    return sha256("\n".join(sorted(lines + in_memory)).encode())


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that a code object reads; `co_names` also contains its attributes."""
    names, extended = set(), 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= extended << 8
        extended = argument if operation == dis.EXTENDED_ARG else 0
        if operation == LOAD_GLOBAL:
            names.add(code.co_names[argument >> 1])  # the lowest bit is a flag
        elif operation == LOAD_NAME:
            names.add(code.co_names[argument])
    return frozenset(names)


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
        names = sorted({name for code in code_objects(function.__code__) for name in global_names(code)} - set(without))
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
