"""Digests of definitions and of all definitions that they refer to.

References are resolved by name through imports, at the top of a module or inside a function, within this package and
the user's own modules. Classes that are selected by name in the configuration have no reference in the source: callers
pass them as additional roots. `content_of` is the digest of loaded code: of kernels, and of classes defined in an
interactive session.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import inspect
import sys
import time
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from fco_cli.code_digest.parse import Module, parsed_modules, sha256
from fco_cli.errors import UserError

PACKAGE = Path(__file__).parents[1]
PACKAGE_LOADED = time.time()  # approximate time at which this process loaded the package
# These packages print, check input and write files; no numerical result depends on them.
WITHOUT_NUMBERS = ("errors", "files", "memory_limit", "help", "code_digest")

LOAD_GLOBAL, LOAD_NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
Definition = tuple[str, str]  # module and name; the name "*" stands for statements that define no name


def path_of(module: str) -> Path | None:
    """Return the source file of a module of this package or of the user; None for all other modules."""
    if module == "fco_cli" or module.startswith("fco_cli."):
        base = PACKAGE.joinpath(*module.split(".")[1:])
        if (base / "__init__.py").is_file():
            return base / "__init__.py"
        return base.with_suffix(".py") if base != PACKAGE and base.with_suffix(".py").is_file() else None
    if is_foreign(module.split(".")[0]):
        return None
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
        origin = spec.origin if spec is not None else None
    path = Path(origin) if origin else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


_digested: set[str] = set()  # installed packages whose code is part of digests


def digest_module(top: str) -> None:
    """Treat a top-level module like the user's own, also if it is installed: the code of plug-ins defines results."""
    if top not in _digested:
        _digested.add(top)
        is_foreign.cache_clear()
        parsed_module.cache_clear()
        digest_of.cache_clear()


@functools.cache
def is_foreign(top: str) -> bool:
    """Return True for the standard library and installed packages, whose versions are in the record instead."""
    if top in _digested:
        return False
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    loaded = sys.modules.get(top)
    if loaded is not None:
        paths = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", [])]
    else:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        paths = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
    return any({"site-packages", "dist-packages"} & set(Path(path).parts) for path in paths if path)


def _read(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def parsed_module(name: str) -> Module | None:
    """Return a parsed module; None if it has no source file of this package or of the user."""
    path = path_of(name)
    if path is None:
        return None
    source = _read(path)
    _check_loaded(name, path, source)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return parsed_modules.get(source, package)


def _check_loaded(name: str, path: Path, source: bytes) -> None:
    """Raise UserError if this process has loaded an older version of a module than the one on disk."""
    module = sys.modules.get(name)
    if module is None or type(module.__loader__) is not SourceFileLoader:  # pytest rewrites test modules
        return
    if path.is_relative_to(PACKAGE) and path.stat().st_mtime < PACKAGE_LOADED:
        return
    codes = {code.co_qualname: code for code in code_objects(compile(source, str(path), "exec", dont_inherit=True))}
    tree = ast.parse(source)
    stores = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and stores[target.id] == 1
    }
    same = all(codes.get(code.co_qualname) == code for code in _loaded_codes(module))
    if not same or any(vars(module).get(key) != value for key, value in constants.items()):
        raise UserError(f"{path}: the file was edited after this process loaded it; restart Python and run again")


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def _loaded_codes(module: types.ModuleType) -> Iterator[types.CodeType]:
    """Yield the code objects of the functions and methods that a module defines."""
    for value in list(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        for member in members:
            inner = getattr(member, "__func__", getattr(member, "fget", None))
            function = inspect.unwrap(member if inner is None else inner)
            code = getattr(function, "__code__", None)
            if code is not None and function.__module__ == module.__name__ and code.co_filename == module.__file__:
                yield code


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
