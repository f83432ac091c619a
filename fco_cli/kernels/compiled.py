"""Kernels: functions over arrays that Numba compiles on first use and caches on disk.

Kernels are plain Python with explicit loops: Numba takes seconds to compile an expression of matrices or an assignment
to a slice (use `copy` instead). `specialize` binds the names that a kernel calls to other kernels, or to a `Namespace`
of kernels, which the text calls as `model.forward(...)`. One source text of an algorithm thus serves every loss and
regularizer and still runs as a single compiled loop. A name can also be bound to a float, which becomes a compile-time
constant. If a part is an ordinary Python function, the whole kernel runs as Python. With NUMBA_DISABLE_JIT=1 every
kernel runs as Python, for debugging and testing.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fco_cli.code_digest import content_of, global_names
from fco_cli.errors import UserError
from fco_cli.kernels.diagnostics import explain

# Reassociation allows vectorized sums. NaN and infinity keep their meaning: they indicate divergence.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
# Only `prange` loops are parallel; searching array expressions for parallelism multiplies the compile time.
PARALLEL = {"prange": True} | dict.fromkeys(
    ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"), False
)

# Numba's workqueue threading layer, the only one always available, aborts the process on concurrent access.
_PARALLEL_LOCK = threading.Lock()


class Namespace:
    """Kernels and numbers that the text of a kernel reads as attributes of one name, as in `ops.copy(w)`."""

    def __init__(self, name: str, parts: Mapping[str, Any]) -> None:
        self.name, self.parts = name, dict(sorted(parts.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and (self.name, self.parts) == (other.name, other.parts)

    def __hash__(self) -> int:
        return hash((self.name, *self.parts.items()))

    def restrict(self, names: Collection[str]) -> Namespace:
        """Return the part of the namespace with these names."""
        return Namespace(self.name, {name: part for name, part in self.parts.items() if name in names})

    @property
    def identity(self) -> str:
        """Digest of all parts."""
        text = ",".join(f"{name}={getattr(part, 'identity', part)!s}" for name, part in self.parts.items())
        return f"{self.name}_{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def is_compilable(self) -> bool:
        return all(_is_compilable(part) for part in self.parts.values())

    def as_module(self, form: str) -> types.ModuleType:
        """Return a module of the parts, each as its attribute `form`; "" for the parts themselves.

        Numba resolves attributes of modules at compile time. It identifies a module by its name, which must therefore
        differ between namespaces.
        """
        module = types.ModuleType(self.identity if form == "_inlined" else self.name)
        for name, part in self.parts.items():
            setattr(module, name, getattr(part, form) if form and isinstance(part, Kernel) else part)
        return module


class Declared:
    """Name of a namespace that `specialize` binds; reading an attribute before that raises AttributeError."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.kind.__name__}.{name} is not bound: call the kernel that `specialize` returns")


def declared(kind: type) -> Any:
    """Declare a global name of a module as a namespace that `specialize` binds; `kind` documents its kernels."""
    return Declared(kind)


def _is_compilable(part: Any) -> bool:
    return part.is_compilable if isinstance(part, Kernel | Namespace) else isinstance(part, float)


def _in_form(part: Any, form: str) -> Any:
    """Return a kernel's attribute `form`, a namespace as a module of such attributes, or a number."""
    if isinstance(part, Namespace):
        return part.as_module(form)
    return getattr(part, form) if form and isinstance(part, Kernel) else part


class Kernel:
    """A function over arrays that is compiled on its first call."""

    def __init__(
        self,
        python: Callable[..., Any],
        parts: dict[str, Any] | None = None,
        parallel: bool = False,
        in_order: bool = False,  # forbid reassociation: sums keep their source order
    ) -> None:
        self.python = python
        self.parallel = parallel
        self.in_order = in_order
        bound: dict[str, Any] = {name: value for name, value in python.__globals__.items() if isinstance(value, Kernel)}
        bound |= parts or {}
        attributes, own = python.__code__.co_names, global_names(python.__code__)
        self.parts = {
            name: bound[name].restrict(attributes) if isinstance(bound[name], Namespace) else bound[name]
            for name in sorted(own & bound.keys())
        }
        functools.update_wrapper(self, python)

    @property
    def _threaded(self) -> bool:
        """True if loops run in threads; with NUMBA_NUM_THREADS=1, plain loops compile in a third of the time."""
        return self.parallel and _numba().config.NUMBA_NUM_THREADS > 1

    @functools.cached_property
    def _content(self) -> str:
        """Digest of the function and of the globals that it reads, without the parts."""
        return content_of(self.python, set(self.parts))

    @property
    def identity(self) -> str:
        """Digest of this kernel and all its parts: the key of its machine code in the cache.

        Cached machine code refers to the modules of its functions by name, so their names are included.
        """
        inner = ",".join(f"{name}={getattr(part, 'identity', part)!s}" for name, part in self.parts.items())
        name = f"{self.python.__module__} {self.python.__name__}"
        text = f"{name} {self._content} {self._threaded} {self.in_order} [{inner}]"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def is_compilable(self) -> bool:
        return all(_is_compilable(part) for part in self.parts.values())

    def reads(self, names: Collection[str]) -> bool:
        """Return True if the function, or a kernel that it calls, reads one of these global names."""
        return not global_names(self.python.__code__).isdisjoint(names) or any(
            part.reads(names) for part in self.parts.values() if isinstance(part, Kernel)
        )

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        """The function to call: compiled, or Python if a part is an ordinary Python function."""
        if not self.is_compilable:
            return self.as_python
        from fco_cli.kernels.library import KERNEL

        compiled = self._compile(KERNEL, no_cfunc_wrapper=True)
        if (folder := _cache_folder()) is not None:
            from fco_cli.kernels.cache import enable_cache

            enable_cache(compiled, folder)
        return compiled

    @functools.cached_property
    def as_python(self) -> Callable[..., Any]:
        """The kernel as an ordinary Python function that calls its (compiled) parts."""
        return self._bind({name: _in_form(part, "") for name, part in self.parts.items()})

    @functools.cached_property
    def uncompiled(self) -> Callable[..., Any]:
        """The kernel and all its parts as ordinary Python functions."""
        return self._bind({name: _in_form(part, "uncompiled") for name, part in self.parts.items()})

    @functools.cached_property
    def _inlined(self) -> Callable[..., Any]:
        """The function as a part of another kernel: always inlined, never cached separately.

        A kernel's machine code is then one unit that does not depend on the contents of the cache at compile time, and
        results are reproducible to the last bit.
        """
        from fco_cli.kernels.library import PART

        return self._compile(PART, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    def _compile(self, prefix: str, **options: Any) -> Any:
        numba = _numba()
        parts = {name: _in_form(part, "_inlined") for name, part in self.parts.items()}
        function = self._bind(parts | _intrinsics() | ({"prange": numba.prange} if self._threaded else {}))
        function.__qualname__ = f"{prefix}{self.python.__name__}_{self.identity}"  # file name in the cache
        parallel = PARALLEL if self._threaded else False
        fastmath = FASTMATH - {"reassoc"} if self.in_order else FASTMATH
        options |= {"nogil": True, "error_model": "numpy", "fastmath": fastmath, "parallel": parallel}
        return numba.njit(**options)(function)

    def _bind(self, parts: dict[str, Any]) -> Any:
        python = self.python
        function = types.FunctionType(python.__code__, {**python.__globals__, **parts}, python.__name__)
        function.__module__ = python.__module__
        return function

    def __call__(self, *arguments: Any) -> Any:
        if _numba().config.DISABLE_JIT:
            with np.errstate(all="ignore"):  # compiled code does not warn either
                return self.uncompiled(*arguments)
        try:
            if self.parallel:
                with _PARALLEL_LOCK:
                    return self.function(*arguments)
            return self.function(*arguments)
        except Exception as problem:
            if message := explain(self, problem):
                raise UserError(message) from problem
            raise


def kernel(python: Callable[..., Any]) -> Kernel:
    """Turn a function into a kernel (decorator)."""
    return Kernel(python)


def kernel_in_order(python: Callable[..., Any]) -> Kernel:
    """Turn a function into a kernel without reassociation: equal sums in two kernels are equal to the last bit."""
    return Kernel(python, in_order=True)


@kernel
def copy(source, out):
    """Copy a vector: out[:] = source."""
    for i in range(source.shape[0]):
        out[i] = source[i]


@kernel
def is_finite(number):
    """Return True if a number is finite.

    Numba's np.isfinite evaluates x - x == 0, which reassociation may simplify to True.
    """
    return abs(number) < math.inf


@functools.cache
def _specialized(template: Kernel, parallel: bool, parts: tuple[tuple[str, Any], ...]) -> Kernel:
    bound = {**template.parts, **dict(parts)}
    namespaces = {name: part for name, part in parts if isinstance(part, Namespace)}
    for name, part in template.parts.items():
        if bound[name] is part and isinstance(part, Kernel) and part.reads(namespaces):
            bound[name] = specialize(part, parallel=part.parallel, **namespaces)
    return Kernel(template.python, bound, parallel, template.in_order)


def specialize(template: Kernel, *, parallel: bool = False, **parts: Any) -> Kernel:
    """Return `template` with the names it calls bound to `parts`.

    A dictionary is a `Namespace`. Namespaces are also bound in the kernels that the template calls.
    """
    bound = {name: Namespace(name, part) if isinstance(part, dict) else part for name, part in parts.items()}
    return _specialized(template, parallel, tuple(sorted(bound.items())))


@functools.cache
def _numba() -> Any:
    """Return the configured numba module; imported late because the import is slow."""
    import numba

    from fco_cli.kernels.library import check_numba, optimize_only_whole_kernels, pause_collection_while_compiling

    check_numba(numba.__version__)
    optimize_only_whole_kernels()
    pause_collection_while_compiling()
    return numba


@functools.cache
def _intrinsics() -> dict[str, Any]:
    """Return the names in products.py that have another definition in compiled code."""
    from fco_cli.kernels import vector

    functions = {"dots": vector.dots, "add_multiples": vector.add_multiples}
    return functions | {"many_registers": vector.has_many_registers()}


@functools.cache
def _cache_folder() -> Path | None:
    """Return the folder of cached machine code; None if kernels are compiled for this process only."""
    from fco_cli.kernels.cache import kernel_folder

    return kernel_folder()


def set_threads(count: int) -> None:
    """Set the number of threads of parallel kernels, at most NUMBA_NUM_THREADS."""
    numba = _numba()
    numba.set_num_threads(max(1, min(count, numba.config.NUMBA_NUM_THREADS)))
