"""Source of a `torch.nn.Module`: a file, an importable module, or an object of this process."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fco_cli.code_digest.digests import digest_module
from fco_cli.errors import UserError, install_extra
from fco_cli.problem.registry import execute_file, import_error

KEY = "model.module"
OBJECTS = "python"  # `python:NAME` stands for an object of this process
FILE_MODULE = "fco_model_{}"  # name of the module of a file
ALLOWED = "FILE.py:NAME or MODULE:NAME, where NAME is a class or a function that returns a torch.nn.Module"


@dataclass(frozen=True)
class Source:
    """A class or function that returns a module, or a module itself."""

    label: str  # as configured
    item: Any
    path: Path | None = None  # of its file
    digest: str = ""  # SHA-256 of the file

    def create(self, options: dict[str, Any], known: dict[str, int], seed: int) -> Any:
        """Return a new module with the initial weights of a seed.

        Arguments of the class or function are the options, and those of `known` that it names.
        """
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = _copy(self.item) if isinstance(self.item, torch.nn.Module) else self._call(options, known)
            except UserError:
                raise
            except Exception as problem:
                raise UserError(f"{KEY}: {self.label}: {type(problem).__name__}: {_line(problem)}") from problem
        if not isinstance(module, torch.nn.Module):
            kind = type(module).__name__
            raise UserError(f"{KEY}: {self.label} returns {kind}, must return a torch.nn.Module")
        return module

    def _call(self, options: dict[str, Any], known: dict[str, int]) -> Any:
        parameters = inspect.signature(self.item).parameters
        return self.item(**{key: value for key, value in known.items() if key in parameters} | options)


def _copy(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def _line(problem: BaseException) -> str:
    """Return the first line of a message; those of PyTorch end in a list of hints."""
    return (str(problem).strip().splitlines() or [""])[0]


_files: dict[str, tuple[Path, str]] = {}  # path and digest of loaded files, by module
_objects: dict[str, Any] = {}  # objects of this process, by name


def require_torch() -> None:
    """Raise UserError unless PyTorch is installed."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"model: model=torch needs PyTorch: {install_extra('torch')}")


def register_object(item: Any) -> str:
    """Register a class, function or module of this process; return its reference, the value of `model.module`."""
    kind = item if isinstance(item, type) or inspect.isfunction(item) else type(item)
    if not callable(item):
        raise UserError(
            f"{KEY}: got {kind.__name__}, must be a torch.nn.Module, or a class or function that returns one"
        )
    same = [name for name, known in _objects.items() if known is item]
    count = sum(name.split("-")[0] == kind.__name__ for name in _objects)
    name = same[0] if same else kind.__name__ + (f"-{count + 1}" if count else "")
    _objects[name] = item
    return f"{OBJECTS}:{name}"


def check_reference(reference: str) -> str:
    """Return a reference with an absolute path; raise UserError for one that cannot be found."""
    source, colon, name = reference.rpartition(":")
    if not (colon and source and name):
        raise UserError(f"{KEY}: got {reference!r}, must be {ALLOWED}")
    if not source.endswith(".py"):
        return reference
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise UserError(f"{KEY}: {source}: no such file; paths are relative to {os.getcwd()}")
    return f"{path}:{name}"


def load(reference: str) -> Source:
    """Return the source of a reference; raise UserError if it cannot be loaded."""
    place, _, name = reference.rpartition(":")
    if place == OBJECTS:
        if name not in _objects:
            raise UserError(f"{KEY}: {reference} is an object of another process; use FILE.py:NAME")
        return Source(reference, _objects[name])
    is_file = place.endswith(".py")
    module = _load_file(Path(place)) if is_file else _import(place)
    label = f"{Path(place).name}:{name}" if is_file else reference
    item = getattr(module, name, None)
    if item is None:
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        listed = f"; it defines {', '.join(own)}" if own else ""
        raise UserError(f"{KEY}: {label}: {name} not found{listed}")
    if not callable(item):
        raise UserError(f"{KEY}: {label} is {type(item).__name__}, must be a class or a function that returns a module")
    path, digest = _files.get(module.__name__, (None, ""))
    return Source(label, item, path, digest)


def modules_in(path: Path) -> list[str]:
    """Return the names of the subclasses of `torch.nn.Module` that a file defines."""
    require_torch()
    import torch

    module = _load_file(path)
    return [
        name
        for name, item in vars(module).items()
        if isinstance(item, type) and issubclass(item, torch.nn.Module) and item.__module__ == module.__name__
    ]


def _load_file(path: Path) -> Any:
    """Execute a file once per process and return its module."""
    name = FILE_MODULE.format(re.sub(r"\W", "_", path.stem))
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise UserError(f"{KEY}: {path}: {problem.strerror}") from problem
    digest = hashlib.sha256(content).hexdigest()
    if name in _files:
        known, before = _files[name]
        if known.resolve() != path.resolve():
            raise UserError(f"{KEY}: {known} and {path} have the same file name; rename one of them")
        if before != digest:
            raise UserError(f"{path}: the file was edited after this process loaded it; restart Python and run again")
        return sys.modules[name]
    digest_module(name)
    try:
        execute_file(name, path, content)
    except (Exception, SystemExit) as problem:
        reason = import_error(problem, name)
        sys.modules.pop(name, None)
        raise UserError(f"{KEY}: {path.name}: {reason}") from problem
    _files[name] = (path, digest)
    return sys.modules[name]


def _import(name: str) -> Any:
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as problem:
        raise UserError(f"{KEY}: {name}: {import_error(problem, name)}") from problem
