"""Parsing of modules into top-level definitions, each with a digest of its syntax tree and its references.

Parsed modules are cached on disk by the digest of their source; entries depend on the source and this module only.
"""

from __future__ import annotations

import ast
import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from fco_cli.errors import UserError
from fco_cli.files import cache_folder, unsafe_reason, write_atomically

log = logging.getLogger(__name__)
MAX_CACHED = 4000  # modules
SHA256_BYTES = 32


class Parsed(msgspec.Struct, array_like=True):
    """One definition: the digest of its syntax tree and its references."""

    digest: str
    references: list[str]  # "name", "name.attribute", or "module:attribute" for an import inside the definition


class Module(msgspec.Struct, array_like=True):
    """Imports and definitions at the top level of one module."""

    imports: dict[str, str]  # name -> "module:" or "module:attribute"
    definitions: dict[str, Parsed]


class _Normalizer(ast.NodeTransformer):
    """Transformer that removes docstrings and function annotations and collects references."""

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
        node.body = [statement for statement in node.body if not _is_style(statement)] or [ast.Pass()]
        outer, self.in_function = self.in_function, False
        self._visit_body(node)
        self.in_function = outer
        return node

    def _visit_body(self, node: Any) -> None:
        if ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Keep the annotation of a class field, which is part of its schema, but ignore references in it."""
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


def _is_style(node: ast.stmt) -> bool:
    """Return True for `style = ...` in a class: colors and labels do not change results."""
    return isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["style"]


def _imported_module(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _dump(node: Any) -> str:
    """Return a text form of a syntax tree that is the same in every Python version."""
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


def parse(source: bytes, package: str) -> Module:
    """Parse the source of a module; `package` resolves its relative imports."""
    imports: dict[str, str] = {}
    bodies: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                imports[alias.asname or top] = f"{alias.name if alias.asname else top}:"
        elif isinstance(node, ast.ImportFrom):
            imports |= {a.asname or a.name: f"{_imported_module(node, package)}:{a.name}" for a in node.names}
        elif _is_type_checking(node) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        else:
            for name in _bound_names(node) or ["*"]:
                bodies.setdefault(name, []).append(node)
    definitions = {}
    for name, nodes in bodies.items():
        normalizer = _Normalizer(package)
        text = _dump([normalizer.visit(node) for node in nodes])
        references = normalizer.references - {name}
        definitions[name] = Parsed(sha256(text.encode()), sorted(references))
    return Module(imports, definitions)


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _bound_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    stores = (sub for sub in ast.walk(node) if isinstance(sub, ast.Name) and isinstance(sub.ctx, ast.Store))
    return [store.id for store in stores] if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else []


def sha256(content: bytes) -> str:
    """Return the first 32 hexadecimal digits of the SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()[:32]


def _parser_source() -> bytes:
    return Path(__file__).read_bytes()


class ParsedModules:
    """Parsed modules by the digest of their source, in memory and in a file."""

    def __init__(self) -> None:
        self.modules: dict[str, Module] | None = None
        self.has_new = False

    @property
    def path(self) -> Path:
        return cache_folder("code") / "digests"

    def get(self, source: bytes, package: str) -> Module:
        """Return the parsed module for this source; `package` resolves its relative imports."""
        if self.modules is None:
            self.modules = self._read()
        key = sha256(package.encode() + b"\0" + source)
        if key not in self.modules:
            self.modules[key] = parse(source, package)
            self.has_new = True
        return self.modules[key]

    def _read(self) -> dict[str, Module]:
        try:
            if unsafe_reason(self.path.parent):
                return {}
            content = self.path.read_bytes()
            checksum, body = content[:SHA256_BYTES], content[SHA256_BYTES:]
            if hashlib.sha256(_parser_source() + body).digest() != checksum:
                return {}
            return msgspec.msgpack.decode(body, type=dict[str, Module])
        except (OSError, msgspec.MsgspecError):
            return {}

    def save(self) -> None:
        """Write newly parsed modules to the file; ignore a folder that is not writable."""
        if not self.has_new or self.modules is None:
            return
        self.has_new = False
        body = msgspec.msgpack.encode(dict(list(self.modules.items())[-MAX_CACHED:]))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not unsafe_reason(self.path.parent):
                checksum = hashlib.sha256(_parser_source() + body).digest()
                write_atomically(self.path, checksum + body, flush=False)
        except (OSError, UserError) as error:
            log.debug("%s", error)


parsed_modules = ParsedModules()
