"""Registry of classes by name, and plug-ins, which add classes from outside of this package.

A subclass of a family's base class that defines `name` is registered once its module is imported. Modules are found in
the family's package, by the entry point group `fco.plugins`, and in the files and modules given to `load_plugin`.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from fco_cli.code_digest.digests import digest_module
from fco_cli.errors import UserError, one_line

T = TypeVar("T")
ENTRY_POINTS = "fco.plugins"  # group of entry points, each of which names a module or a class
PACKAGE = "fco_cli"
FILE_MODULE = "fco_plugin_{}"  # name of the module of a plug-in file


class Registry(Generic[T]):
    """Family of classes: the named subclasses of a base class, by name."""

    def __init__(self, group: str, base: Any, package: str | None = None) -> None:
        self.group, self.base, self.package = group, base, package
        FAMILIES[group] = self

    def __call__(self) -> dict[str, type[T]]:
        """Return the classes by name, after importing the family's package and the installed plug-ins."""
        self.import_package()
        load_entry_points()
        found: dict[str, type[T]] = {}
        for name, kind in self.classes():
            found.setdefault(name, kind)
        return found

    def import_package(self) -> None:
        """Import all modules of the family's package."""
        if self.package is not None:
            _import_modules(self.package)

    def classes(self) -> Iterator[tuple[str, type[T]]]:
        """Yield the names and classes that are registered now."""
        for kind in _descendants(self.base):
            if isinstance(name := vars(kind).get("name"), str) and kind.__module__ in sys.modules:
                yield name, kind


FAMILIES: dict[str, Registry[Any]] = {}  # by configuration group


@functools.cache
def _import_modules(package: str) -> None:
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


def _descendants(kind: Any) -> Iterator[Any]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)


@dataclass(frozen=True)
class Plugin:
    """Loaded plug-in: a file, or a module found by its name."""

    module: str  # key in sys.modules
    path: Path  # its source file, absolute
    digest: str  # SHA-256 of the file when it was loaded


class NothingRegisteredError(UserError):
    """A plug-in that defines no class of a family."""


_loaded: dict[str, Plugin] = {}  # by source: a path that ends in .py, or the name of a module
_packages: set[str] = set()  # top-level modules of plug-ins, also of installed ones
_failed: set[str] = set()  # modules of plug-ins that were refused
_distributions: dict[str, str] = {}  # name and version of the distributions with entry points


def load_plugin(source: str, path: Path | None = None) -> Plugin:
    """Load a file or an importable module once; raise UserError if it is invalid.

    `path` is the absolute path of a file, by default the source relative to the current folder.
    """
    is_file = source.endswith(".py") or os.sep in source
    name = FILE_MODULE.format(re.sub(r"\W", "_", Path(source).stem)) if is_file else source
    if is_file:
        path = path or Path(source).expanduser().absolute()
    known = next((plugin for plugin in _loaded.values() if plugin.module == name), None)
    if known is not None:
        if path is not None and path.resolve() != known.path.resolve():
            raise UserError(f"plugins: {known.path} and {path} have the same file name; rename one of them")
        _loaded[source] = known
        return known
    with _checked_plugin(f"plugins: {source}", name):
        if not is_file:
            if (folder := os.getcwd()) not in sys.path:
                sys.path.append(folder)
            module = importlib.import_module(name)
            path = Path(module.__file__ or "").absolute()
            content = path.read_bytes()
        else:
            assert path is not None
            content = _read(source, path)
            execute_file(name, path, content)
    _loaded[source] = Plugin(name, path, hashlib.sha256(content).hexdigest())
    return _loaded[source]


def _read(source: str, path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"plugins: {source}: no such file; paths are relative to {os.getcwd()}")
    try:
        return path.read_bytes()
    except OSError as problem:
        raise UserError(f"plugins: {source}: {problem.strerror}") from problem


def execute_file(name: str, path: Path, content: bytes) -> None:
    """Execute a file as a module, without cached bytecode: its time stamps do not separate edits within a second."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)


_pending_entry_points: list[EntryPoint] | None = None  # None: not listed yet


def load_entry_points() -> None:
    """Load the installed plug-ins, on the first call."""
    global _pending_entry_points
    if _pending_entry_points is None:
        _pending_entry_points = list(entry_points(group=ENTRY_POINTS))
    while _pending_entry_points:  # a plug-in may call a registry while it is loaded
        entry = _pending_entry_points.pop(0)
        package = "" if entry.dist is None else entry.dist.name
        with _checked_plugin(f"entry point {entry.name} = {entry.value} of {package}", entry.module):
            entry.load()
        if entry.dist is not None:
            _distributions[entry.dist.name] = entry.dist.version


@contextmanager
def _checked_plugin(label: str, module: str) -> Iterator[None]:
    """Import a plug-in in the body; raise UserError if it fails, registers nothing or uses a registered name."""
    if module in _failed:
        gc.collect()  # removes the classes of the last attempt
    before = {kind for family in FAMILIES.values() for _, kind in family.classes()}
    digest_module(module.split(".")[0])
    try:
        try:
            yield
        except UserError:
            raise
        except (Exception, SystemExit) as problem:
            raise UserError(f"{label}: {import_error(problem, module)}") from problem
        _check_names(label, module, before)
        _packages.add(module.split(".")[0])
    except UserError:
        sys.modules.pop(module, None)  # unregisters its classes
        _failed.add(module)
        raise


def plugin_line(problem: BaseException) -> str | None:
    """Return the file and line of a plug-in that raised an exception, itself or by a call; None if this package did."""
    place = None
    for frame, line in traceback.walk_tb(problem.__traceback__):
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package in _packages:
            place = f"{frame.f_code.co_filename}: line {line}"
        elif package == PACKAGE:
            place = None
    return place


def _check_names(label: str, module: str, before: set[Any]) -> None:
    """Raise UserError if a plug-in has registered no class, or one under the name of another class."""
    registered = False
    for family in FAMILIES.values():
        own = [
            (name, kind)
            for name, kind in family.classes()
            if (kind not in before and not kind.__module__.startswith(f"{PACKAGE}."))
            or f"{kind.__module__}.".startswith(f"{module}.")
        ]  # fmt: skip
        if own:
            family.import_package()
        registered |= bool(own)
        for name, kind in own:
            others = [other for other_name, other in family.classes() if other_name == name and other is not kind]
            if others:
                taken = f"{family.group} {name!r} is already defined in {others[0].__module__}"
                raise UserError(f"{label}: {taken}; choose another name")
    if not registered:
        families = ", ".join(sorted(family.base.__name__ for family in FAMILIES.values()))
        raise NothingRegisteredError(
            f"{label}: registers nothing; define a subclass with a `name` of one of {families}"
        )


def import_error(problem: BaseException, module: str) -> str:
    """Return the reason of a failed import in one line, with the line of the plug-in where it happened."""
    if isinstance(problem, SyntaxError):
        return f"line {problem.lineno}: SyntaxError: {problem.msg}"
    path = getattr(sys.modules.get(module), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == path]
    return f"{f'line {lines[-1]}: ' if lines else ''}{type(problem).__name__}: {one_line(problem)}"


def loaded_plugins(sources: Iterable[str]) -> dict[str, Plugin]:
    """Return the loaded plug-ins by source."""
    return {source: _loaded[source] for source in sources}


def plugin_versions() -> dict[str, str]:
    """Return the versions of the distributions whose plug-ins are loaded."""
    return dict(_distributions)
