"""Digests of definitions and of all definitions that they refer to.

References are resolved by name through imports, at the top of a module or inside a function, within this package and
the user's own modules. Classes that are selected by name in the configuration have no reference in the source: callers
pass them as additional roots.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from fco_cli.code_digest.cache import parsed_modules
from fco_cli.code_digest.loaded import content_of
from fco_cli.code_digest.modules import parsed_module, path_of
from fco_cli.code_digest.parse import sha256

# These packages print, check input and write files; no numerical result depends on them.
WITHOUT_NUMBERS = ("errors", "files", "progress", "memory_limit", "private_folder", "help", "code_digest")

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
