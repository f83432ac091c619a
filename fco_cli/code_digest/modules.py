"""Source files of the modules of this package and of the user."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
import time
import types
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

from fco_cli.code_digest.parse import Module, parsed_modules
from fco_cli.errors import UserError

PACKAGE = Path(__file__).parents[1]
PACKAGE_LOADED = time.time()  # approximate time at which this process loaded the package


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
    _digested.add(top)
    is_foreign.cache_clear()


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
    constants = {
        target.id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
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
            function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)) or member)
            code = getattr(function, "__code__", None)
            if code is not None and function.__module__ == module.__name__ and code.co_filename == module.__file__:
                yield code
