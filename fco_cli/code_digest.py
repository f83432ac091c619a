"""Digests of source code: of definitions together with every definition that they refer to.

A module is parsed into its top-level definitions (functions, classes, assignments), each with a digest of its syntax
tree and the names that it refers to. Comments, docstrings, layout and the annotations of functions are left out: they
change no result. References are followed by name through imports, at the top of a module or inside a function, within
this package and the user's own modules. Classes that are looked up by a configured name are not referred to in the
text: whoever computes a digest passes them as roots.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import logging
import sys
import time
import types
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from fco_cli.errors import UserError
from fco_cli.files import cache_folder, write_atomically
from fco_cli.private_folder import why_unsafe

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).parent
PACKAGE_LOADED = time.time()  # about when this process loaded the package
# These print, check input and write files; no number of a result depends on them.
WITHOUT_NUMBERS = ("errors", "files", "progress", "memory_limit", "private_folder", "help", "code_digest")
MOST_CACHED = 4000  # modules
SHA256_BYTES = 32

Definition = tuple[str, str]  # module and name; the name "*" is a module's statements that define nothing


class Parsed(msgspec.Struct, array_like=True):
    """One definition: a digest of its syntax tree and the references in it."""

    digest: str
    references: list[str]  # "name", "name.attribute", or "module:attribute" for an import inside of the definition


class Module(msgspec.Struct, array_like=True):
    """The top level of one module."""

    imports: dict[str, str]  # name -> "module:" or "module:attribute"
    definitions: dict[str, Parsed]


# Parsing.


class _Normalizer(ast.NodeTransformer):
    """Removes docstrings and the annotations of functions; collects references."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.references: set[str] = set()
        self.in_function = False

    def visit_FunctionDef(self, node: Any) -> Any:
        node.returns = None
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        for argument in (arguments.vararg, arguments.kwarg):
            if argument is not None:
                argument.annotation = None
        outer, self.in_function = self.in_function, True
        self._visit_body(node)
        self.in_function = outer
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        outer, self.in_function = self.in_function, False
        self._visit_body(node)
        self.in_function = outer
        return node

    def _visit_body(self, node: Any) -> None:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Keep the annotation of a class's field, which is part of its schema, but follow no reference in it."""
        annotation = node.annotation
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        if not self.in_function:
            node.annotation = annotation
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load):
            self.references.add(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if isinstance(node.value, ast.Name):
            self.references.add(f"{node.value.id}.{node.attr}")
            return node
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> Any:
        self.references |= {f"{alias.name}:" for alias in node.names}
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        self.references |= {f"{_imported_module(node, self.package)}:{alias.name}" for alias in node.names}
        return node


def _imported_module(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _dump(node: Any) -> str:
    """Write a syntax tree in a form that is the same in every version of Python."""
    if isinstance(node, ast.AST):
        parts = [
            f"{name}={_dump(value)}"
            for name in node._fields
            if name not in ("ctx", "kind", "type_comment")
            and (value := getattr(node, name, None)) is not None
            and value != []
        ]
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)


def _parse(source: bytes, package: str) -> Module:
    imports: dict[str, str] = {}
    bodies: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                imports[alias.asname or top] = f"{alias.name if alias.asname else top}:"
        elif isinstance(node, ast.ImportFrom):
            imports |= {a.asname or a.name: f"{_imported_module(node, package)}:{a.name}" for a in node.names}
        elif _is_for_types(node) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        else:
            for name in _bound_names(node) or ["*"]:
                bodies.setdefault(name, []).append(node)
    definitions = {}
    for name, nodes in bodies.items():
        normalizer = _Normalizer(package)
        text = _dump([normalizer.visit(node) for node in nodes])
        references = normalizer.references - {name}
        definitions[name] = Parsed(_sha256(text.encode()), sorted(references))
    return Module(imports, definitions)


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    stores = (sub for sub in ast.walk(node) if isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Store))
    return [store.id for store in stores] if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else []


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# Parsed modules are kept on disk under the digest of their bytes. They depend on those bytes and on this module only.


def _own_source() -> bytes:
    return Path(__file__).read_bytes()


class _ParsedModules:
    """Parsed modules by the digest of their bytes, in memory and in a file."""

    def __init__(self) -> None:
        self.known: dict[str, Module] | None = None
        self.has_new = False

    @property
    def path(self) -> Path:
        return cache_folder("code") / "digests"

    def get(self, source: bytes, package: str) -> Module:
        if self.known is None:
            self.known = self._read()
        key = _sha256(package.encode() + b"\0" + source)
        if key not in self.known:
            self.known[key] = _parse(source, package)
            self.has_new = True
        return self.known[key]

    def _read(self) -> dict[str, Module]:
        try:
            if why_unsafe(self.path.parent):
                return {}
            content = self.path.read_bytes()
            checksum, body = content[:SHA256_BYTES], content[SHA256_BYTES:]
            if hashlib.sha256(_own_source() + body).digest() != checksum:
                return {}
            return msgspec.msgpack.decode(body, type=dict[str, Module])
        except (OSError, msgspec.MsgspecError):
            return {}

    def save(self) -> None:
        """Write what was parsed in this process; a folder that cannot be written costs time only."""
        if not self.has_new or self.known is None:
            return
        self.has_new = False
        body = msgspec.msgpack.encode(dict(list(self.known.items())[-MOST_CACHED:]))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not why_unsafe(self.path.parent):
                checksum = hashlib.sha256(_own_source() + body).digest()
                write_atomically(self.path, checksum + body, flush=False)
        except (OSError, UserError) as problem:
            log.debug("%s", problem)


_parsed_modules = _ParsedModules()


# Finding modules.


def _path_of(module: str) -> Path | None:
    """Return the source file of a module of this package or of the user's own; None for all others."""
    if module == "fco_cli" or module.startswith("fco_cli."):
        base = PACKAGE.joinpath(*module.split(".")[1:])
        if (base / "__init__.py").is_file():
            return base / "__init__.py"
        return base.with_suffix(".py") if base != PACKAGE and base.with_suffix(".py").is_file() else None
    if _is_foreign(module.split(".")[0]):
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


@functools.cache
def _is_foreign(top: str) -> bool:
    """True for the standard library and installed packages, whose versions a record states instead."""
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    loaded = sys.modules.get(top)
    if loaded is not None:
        places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", [])]
    else:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or [])]
    return any({"site-packages", "dist-packages"} & set(Path(place).parts) for place in places if place)


def _read(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def _module(name: str) -> Module | None:
    path = _path_of(name)
    if path is None:
        return None
    source = _read(path)
    _check_loaded(name, path, source)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _parsed_modules.get(source, package)


def _check_loaded(name: str, path: Path, source: bytes) -> None:
    """Raise UserError if this process runs an older text of a module than the one on disk."""
    module = sys.modules.get(name)
    if module is None or (path.is_relative_to(PACKAGE) and path.stat().st_mtime < PACKAGE_LOADED):
        return
    codes = {code.co_qualname: code for code in _codes(compile(source, str(path), "exec", dont_inherit=True))}
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


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _loaded_codes(module: types.ModuleType) -> Iterator[types.CodeType]:
    """Yield the code of the functions and methods that a module defines."""
    for value in list(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        for member in members:
            function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)) or member)
            code = getattr(function, "__code__", None)
            if code is not None and function.__module__ == module.__name__ and code.co_filename == module.__file__:
                yield code


# Following references.


def _resolve(module: str, name: str) -> Iterator[Definition]:
    """Yield the definitions that a name means at the top of a module."""
    parsed = _module(module)
    if parsed is None:
        return
    head, _, attribute = name.partition(".")
    if head in parsed.definitions:
        yield module, head
    elif head in parsed.imports:
        target, _, imported = parsed.imports[head].partition(":")
        yield from _resolve_import(target, imported, attribute)


def _resolve_import(target: str, imported: str, attribute: str = "") -> Iterator[Definition]:
    """Yield what `from target import imported` means, or of a module its `attribute` (all of it if that is empty)."""
    if imported and _path_of(f"{target}.{imported}") is not None:
        target, imported = f"{target}.{imported}", ""
    parsed = _module(target)
    if parsed is None:
        return
    if imported == "*" or (not imported and not attribute):
        yield from ((target, name) for name in parsed.definitions)
    elif not imported and attribute and _path_of(f"{target}.{attribute}") is not None:
        yield from _resolve_import(f"{target}.{attribute}", "")
    else:
        yield from _resolve(target, imported or attribute)


def reachable(roots: Iterable[Definition], without: tuple[str, ...] = ()) -> dict[Definition, str]:
    """Return the digests of the roots and of all that they refer to, except in the packages `without`."""
    excluded = tuple(f"fco_cli.{name}" for name in (*WITHOUT_NUMBERS, *without))
    digests: dict[Definition, str] = {}
    waiting = list(roots)
    while waiting:
        definition = module, name = waiting.pop()
        if definition in digests or _is_within(module, excluded):
            continue
        parsed = _module(module)
        if parsed is None:
            continue
        if name not in parsed.definitions:
            waiting += [found for found in _resolve(module, name) if found != definition]
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


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def definition_of(kind: Any) -> Definition:
    """Return the definition of a class or function."""
    return kind.__module__, kind.__qualname__.split(".")[0]


@functools.cache
def digest_of(roots: tuple[Any, ...], without: tuple[str, ...] = ()) -> str:
    """Return one digest of the code of `roots` (classes, functions or definitions) and of all that they refer to."""
    definitions = [root if isinstance(root, tuple) else definition_of(root) for root in roots]
    digests = reachable(definitions, without)
    _parsed_modules.save()
    in_memory = [
        f"{module}:{name} {content_of(root)}"
        for root, (module, name) in zip(roots, definitions, strict=True)
        if not isinstance(root, tuple) and (module, name) not in digests
    ]
    lines = [f"{module}:{name} {digest}" for (module, name), digest in digests.items()]
    return _sha256("\n".join(sorted(lines + in_memory)).encode())


# Loaded code: kernels, and classes that were defined in an interactive session.


def content_of(value: Any, without: Collection[str] = ()) -> str:
    """Return a digest of a loaded function or class: its bytecode and the globals that it reads, except `without`."""
    return _sha256(_content(value, without, {}).encode())


def _content(value: Any, without: Collection[str], seen: dict[int, int]) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if id(value) in seen:
        return f"#{seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({','.join(_content(each, without, seen) for each in value)})"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    function = getattr(value, "py_func", getattr(value, "__func__", getattr(value, "python", value)))
    if isinstance(function, types.FunctionType):
        names = sorted({name for code in _codes(function.__code__) for name in code.co_names} - set(without))
        known = function.__globals__
        bound = [f"{name}={_content(known[name], without, seen)}" for name in names if name in known]
        defaults = _content(function.__defaults__, without, seen)
        return f"function({_code_content(function.__code__)};{defaults};{','.join(bound)})"
    if isinstance(value, type) and not _is_foreign(value.__module__.split(".")[0]):
        own = {name: each for name, each in vars(value).items() if not name.startswith("__")}
        parts = [f"{name}={_content(each, without, seen)}" for name, each in sorted(own.items())]
        return f"class {value.__qualname__}({','.join(parts)})"
    return f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def _code_content(code: types.CodeType) -> str:
    constants = [_code_content(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    if code.co_consts and isinstance(code.co_consts[0], str):
        constants[0] = "None"  # a docstring
    return f"{code.co_code.hex()},{code.co_names},{code.co_varnames},{constants}"
